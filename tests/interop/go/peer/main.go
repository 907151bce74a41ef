// Command peer is the other end of a ttrpc connection, made of the Go module: a server of the service in peer.proto,
// or a client that does what the lines of its standard input say and tells on standard output what came of it.
//
//	peer serve SOCKET     serves until standard input ends
//	peer call SOCKET      one JSON document per line: see command and result
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: peer serve|call SOCKET"))
	}
	switch os.Args[1] {
	case "serve":
		fail(serve(os.Args[2]))
	case "call":
		fail(call(os.Args[2]))
	default:
		fail(fmt.Errorf("peer knows serve and call, not %q", os.Args[1]))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}
