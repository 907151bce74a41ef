/* The floor of an attach: the requests that it cannot do without, and nothing else.
 *
 *   moves in|attach|home POD_NAMESPACE MTU {IFINDEX,HOST_NAME,POD_NAME,ADDRESS/LENGTH [SETTING...]}...
 *
 * runs in the namespace of the host. `in` moves each link into the pod under its new name and the same number, and
 * there sets its MTU, gives it its IPv4 address and raises it, one request after the other. `home` moves each back under
 * its old name, sets the MTU and raises it. Prints the nanoseconds that this took, and those of them that the process
 * had a processor.
 *
 * `attach` does what `in` does, and asks the kernel for all that nri-rdma asks it for in an attach: before the moves who
 * has sockets, what each link carries (so that it can come home as it was) and how host and pod route; after them
 * whether each link is in the pod. Before the first move and at the end it writes a file beside the pod's, as large as a
 * journal's record. What is told is received whole and not read.
 *
 * A link with settings gets its features in one request of ethtool, each sysctl by one write, and all else (MTU,
 * address, up, neighbours, routes, rules) in one datagram of rtnetlink. Settings, of IPv4, in the order of the requests:
 *
 *   feature:NAME=0|1   sysctl:NAME=VALUE (of ipv4/conf)   neighbour:ADDRESS,MAC   route:ADDRESS/LENGTH,GATEWAY,TABLE
 *   rule:PRIORITY,SOURCE/LENGTH,DESTINATION/LENGTH,TABLE
 *
 * A gateway 0.0.0.0 is none: the route is on the link. A network 0.0.0.0/0 of a rule is none. `home` switches the
 * features on again.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/dcbnl.h>
#include <linux/ethtool_netlink.h>
#include <linux/fib_rules.h>
#include <linux/genetlink.h>
#include <linux/if_addr.h>
#include <linux/inet_diag.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NEW_IFINDEX 49 /* IFLA_NEW_IFINDEX, include/uapi/linux/if_link.h */
#define MOST_LINKS 64
#define MOST_REQUESTS 64 /* of one link */
#define STATES 0xffffffbf /* of sockets: all but TIME-WAIT */
#define SKIP_STATISTICS 8 /* RTEXT_FILTER_SKIP_STATS, include/uapi/linux/rtnetlink.h */
#define OF_A_RECORD 4096  /* Bytes, and as many again for each link. */

struct link {
    int ifindex, length, settings;
    char host_name[IFNAMSIZ], pod_name[IFNAMSIZ], address[INET_ADDRSTRLEN];
    char **setting;
};

struct request {
    struct nlmsghdr head;
    char body[512];
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint64_t now(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void begin(struct request *request, int type, int flags, const void *head, size_t size)
{
    memset(request, 0, sizeof *request);
    request->head.nlmsg_type = (uint16_t)type;
    request->head.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags);
    request->head.nlmsg_len = (uint32_t)NLMSG_LENGTH(size);
    memcpy(NLMSG_DATA(&request->head), head, size);
}

static void put(struct request *request, int type, const void *data, size_t size)
{
    struct rtattr *attribute = (void *)((char *)request + NLMSG_ALIGN(request->head.nlmsg_len));
    attribute->rta_type = (uint16_t)type;
    attribute->rta_len = (uint16_t)RTA_LENGTH(size);
    if (size)
        memcpy(RTA_DATA(attribute), data, size);
    request->head.nlmsg_len = (uint32_t)(NLMSG_ALIGN(request->head.nlmsg_len) + RTA_ALIGN(attribute->rta_len));
}

static void ask(int fd, struct request *request, const char *what)
{
    char answer[8192];
    if (send(fd, request, request->head.nlmsg_len, 0) < 0)
        fail(what);
    if (recv(fd, answer, sizeof answer, 0) < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        fail(what);
    struct nlmsgerr *error = NLMSG_DATA((struct nlmsghdr *)answer);
    if (error->error) {
        errno = -error->error;
        fail(what);
    }
}

static void move(int fd, int ifindex, int target, const char *name)
{
    struct ifinfomsg head = {.ifi_index = ifindex};
    struct request request;
    begin(&request, RTM_NEWLINK, 0, &head, sizeof head);
    put(&request, IFLA_NET_NS_FD, &target, sizeof target);
    put(&request, IFLA_IFNAME, name, strlen(name) + 1);
    put(&request, NEW_IFINDEX, &ifindex, sizeof ifindex);
    ask(fd, &request, "move");
}

static struct request mtu_request(int ifindex, uint32_t mtu)
{
    struct ifinfomsg head = {.ifi_index = ifindex};
    struct request request;
    begin(&request, RTM_NEWLINK, 0, &head, sizeof head);
    put(&request, IFLA_MTU, &mtu, sizeof mtu);
    return request;
}

static void set_mtu(int fd, int ifindex, uint32_t mtu)
{
    struct request request = mtu_request(ifindex, mtu);
    ask(fd, &request, "set the MTU");
}

static struct in_addr address_of(const char *text)
{
    struct in_addr address;
    if (inet_pton(AF_INET, text, &address) != 1)
        fail(text);
    return address;
}

static struct request address_request(const struct link *link)
{
    struct ifaddrmsg head = {
        .ifa_family = AF_INET, .ifa_prefixlen = (uint8_t)link->length, .ifa_index = (uint32_t)link->ifindex};
    struct request request;
    struct in_addr address = address_of(link->address);
    begin(&request, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    put(&request, IFA_LOCAL, &address, sizeof address);
    put(&request, IFA_ADDRESS, &address, sizeof address);
    return request;
}

static struct request up_request(int ifindex)
{
    struct ifinfomsg head = {.ifi_index = ifindex, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    struct request request;
    begin(&request, RTM_NEWLINK, 0, &head, sizeof head);
    return request;
}

static void raise_link(int fd, int ifindex)
{
    struct request request = up_request(ifindex);
    ask(fd, &request, "raise");
}

static struct request neighbour_request(int ifindex, const char *words)
{
    struct ndmsg head = {.ndm_family = AF_INET, .ndm_ifindex = ifindex, .ndm_state = NUD_PERMANENT};
    struct request request;
    char text[INET_ADDRSTRLEN];
    unsigned char mac[6];
    if (sscanf(words, "%15[^,],%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", text, mac, mac + 1, mac + 2, mac + 3, mac + 4,
               mac + 5) != 7)
        fail(words);
    struct in_addr address = address_of(text);
    begin(&request, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &head, sizeof head);
    put(&request, NDA_DST, &address, sizeof address);
    put(&request, NDA_LLADDR, mac, sizeof mac);
    return request;
}

static struct request route_request(int ifindex, const char *words)
{
    char destination[INET_ADDRSTRLEN], gateway[INET_ADDRSTRLEN];
    unsigned char length;
    uint32_t table;
    if (sscanf(words, "%15[^/]/%hhu,%15[^,],%u", destination, &length, gateway, &table) != 4)
        fail(words);
    struct in_addr to = address_of(destination), via = address_of(gateway);
    struct rtmsg head = {.rtm_family = AF_INET, .rtm_dst_len = length, .rtm_protocol = RTPROT_STATIC,
                         .rtm_scope = via.s_addr ? RT_SCOPE_UNIVERSE : RT_SCOPE_LINK, .rtm_type = RTN_UNICAST};
    struct request request;
    begin(&request, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    put(&request, RTA_DST, &to, sizeof to);
    put(&request, RTA_TABLE, &table, sizeof table);
    put(&request, RTA_OIF, &ifindex, sizeof ifindex);
    if (via.s_addr)
        put(&request, RTA_GATEWAY, &via, sizeof via);
    return request;
}

static struct request rule_request(const char *words)
{
    char source[INET_ADDRSTRLEN], destination[INET_ADDRSTRLEN];
    unsigned char source_length, destination_length;
    uint32_t priority, table;
    if (sscanf(words, "%u,%15[^/]/%hhu,%15[^/]/%hhu,%u", &priority, source, &source_length, destination,
               &destination_length, &table) != 6)
        fail(words);
    struct in_addr from = address_of(source), to = address_of(destination);
    struct fib_rule_hdr head = {.family = AF_INET, .src_len = source_length, .dst_len = destination_length,
                                .action = FR_ACT_TO_TBL};
    struct request request;
    begin(&request, RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    put(&request, FRA_PRIORITY, &priority, sizeof priority);
    put(&request, FRA_TABLE, &table, sizeof table);
    if (source_length)
        put(&request, FRA_SRC, &from, sizeof from);
    if (destination_length)
        put(&request, FRA_DST, &to, sizeof to);
    return request;
}

/* The rest of a setting whose word it is; else none. */
static const char *setting(const char *text, const char *word)
{
    size_t length = strlen(word);
    return strncmp(text, word, length) ? NULL : text + length;
}

/* The attribute that contains what is put until `end`. */
static struct nlattr *nest(struct request *request, int type)
{
    struct nlattr *attribute = (void *)((char *)request + NLMSG_ALIGN(request->head.nlmsg_len));
    put(request, type | NLA_F_NESTED, NULL, 0);
    return attribute;
}

static void end(struct request *request, struct nlattr *attribute)
{
    attribute->nla_len = (uint16_t)((char *)request + request->head.nlmsg_len - (char *)attribute);
}

/* The number of ethtool's messages. */
static int ethtool_family(int fd)
{
    struct genlmsghdr head = {.cmd = CTRL_CMD_GETFAMILY, .version = 1};
    struct request request;
    char answer[8192];
    begin(&request, GENL_ID_CTRL, 0, &head, sizeof head);
    request.head.nlmsg_flags = NLM_F_REQUEST;
    put(&request, CTRL_ATTR_FAMILY_NAME, ETHTOOL_GENL_NAME, sizeof ETHTOOL_GENL_NAME);
    ssize_t length = -1;
    if (send(fd, &request, request.head.nlmsg_len, 0) < 0 || (length = recv(fd, answer, sizeof answer, 0)) < 0)
        fail("find ethtool");
    char *last = answer + length, *at = answer + NLMSG_LENGTH(sizeof head);
    for (struct nlattr *it = (void *)at; (char *)it < last; it = (void *)((char *)it + NLA_ALIGN(it->nla_len)))
        if (it->nla_type == CTRL_ATTR_FAMILY_ID)
            return *(uint16_t *)(it + 1);
    errno = ENOENT;
    fail("find ethtool");
    return 0;
}

/* All features in one request; `home` switches them on. */
static void set_features(int fd, int family, const struct link *link, int is_home)
{
    struct genlmsghdr head = {.cmd = ETHTOOL_MSG_FEATURES_SET, .version = 1};
    struct request request;
    uint32_t ifindex = (uint32_t)link->ifindex;
    int number = 0;
    begin(&request, family, 0, &head, sizeof head);
    struct nlattr *device = nest(&request, ETHTOOL_A_FEATURES_HEADER);
    put(&request, ETHTOOL_A_HEADER_DEV_INDEX, &ifindex, sizeof ifindex);
    end(&request, device);
    struct nlattr *wanted = nest(&request, ETHTOOL_A_FEATURES_WANTED), *bits = nest(&request, ETHTOOL_A_BITSET_BITS);
    for (int i = 0; i < link->settings; i++) {
        const char *name = setting(link->setting[i], "feature:"), *value = name ? strchr(name, '=') : NULL;
        if (!value)
            continue;
        char text[64] = "";
        memcpy(text, name, (size_t)(value - name));
        struct nlattr *bit = nest(&request, ETHTOOL_A_BITSET_BITS_BIT);
        put(&request, ETHTOOL_A_BITSET_BIT_NAME, text, strlen(text) + 1);
        if (is_home || value[1] == '1')
            put(&request, ETHTOOL_A_BITSET_BIT_VALUE, NULL, 0);
        end(&request, bit);
        number++;
    }
    end(&request, bits);
    end(&request, wanted);
    request.head.nlmsg_flags &= (uint16_t)~NLM_F_ACK; /* the answer itself, or an error */
    char answer[8192];
    if (!number)
        return;
    if (send(fd, &request, request.head.nlmsg_len, 0) < 0 || recv(fd, answer, sizeof answer, 0) < 0)
        fail("set features");
    if (((struct nlmsghdr *)answer)->nlmsg_type == NLMSG_ERROR) {
        errno = -((struct nlmsgerr *)NLMSG_DATA((struct nlmsghdr *)answer))->error;
        if (errno)
            fail("set features");
    }
}

static void write_sysctl(const struct link *link, const char *words)
{
    char path[160];
    const char *value = strchr(words, '=');
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%s/%.*s", link->pod_name, (int)(value - words), words);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, value + 1, strlen(value + 1)) < 0)
        fail(path);
    close(fd);
}

/* All in one datagram; the kernel answers what it refuses, and the last one. */
static void ask_together(int fd, struct request *requests, int number)
{
    char datagram[MOST_REQUESTS * sizeof *requests], answer[8192];
    size_t size = 0;
    for (int i = 0; i < number; i++) {
        if (i < number - 1)
            requests[i].head.nlmsg_flags &= (uint16_t)~NLM_F_ACK;
        memcpy(datagram + size, &requests[i], requests[i].head.nlmsg_len);
        size += NLMSG_ALIGN(requests[i].head.nlmsg_len);
    }
    if (send(fd, datagram, size, 0) < 0)
        fail("configure");
    if (recv(fd, answer, sizeof answer, 0) < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)))
        fail("configure");
    struct nlmsgerr *error = NLMSG_DATA((struct nlmsghdr *)answer);
    if (error->error) {
        errno = -error->error;
        fail("configure");
    }
}

static int open_netlink(int protocol)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    if (fd < 0)
        fail("open a netlink socket");
    return fd;
}

static int open_namespace(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail(path);
    return fd;
}

static void configure(int fd, const struct link *link, uint32_t mtu)
{
    struct request requests[MOST_REQUESTS];
    const char *words;
    int number = 0;
    for (int i = 0; i < link->settings; i++)
        if ((words = setting(link->setting[i], "sysctl:")))
            write_sysctl(link, words);
    requests[number++] = mtu_request(link->ifindex, mtu);
    requests[number++] = address_request(link);
    requests[number++] = up_request(link->ifindex);
    for (int i = 0; i < link->settings && number < MOST_REQUESTS; i++)
        if ((words = setting(link->setting[i], "neighbour:")))
            requests[number++] = neighbour_request(link->ifindex, words);
        else if ((words = setting(link->setting[i], "route:")))
            requests[number++] = route_request(link->ifindex, words);
        else if ((words = setting(link->setting[i], "rule:")))
            requests[number++] = rule_request(words);
    ask_together(fd, requests, number);
}

static void attach(int host, int pod, int pod_namespace, const struct link *link, uint32_t mtu)
{
    move(host, link->ifindex, pod_namespace, link->pod_name);
    if (link->settings)
        return; /* configured below */
    struct request request = address_request(link);
    set_mtu(pod, link->ifindex, mtu);
    ask(pod, &request, "add the address");
    raise_link(pod, link->ifindex);
}

static void give_back(int host, int pod, int host_namespace, const struct link *link, uint32_t mtu)
{
    move(pod, link->ifindex, host_namespace, link->host_name);
    set_mtu(host, link->ifindex, mtu);
    raise_link(host, link->ifindex);
}

/* Receive a list to its end, or one answer. */
static void receive(int fd, int is_list)
{
    static char answer[1 << 16];
    for (;;) {
        ssize_t length = recv(fd, answer, sizeof answer, 0);
        if (length < 0)
            fail("receive an answer");
        struct nlmsghdr *it = (void *)answer;
        for (; NLMSG_OK(it, (size_t)length); it = NLMSG_NEXT(it, length))
            if (it->nlmsg_type == NLMSG_DONE || it->nlmsg_type == NLMSG_ERROR)
                return;
        if (!is_list)
            return;
    }
}

static void get(int fd, struct request *request, int flags)
{
    request->head.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
    if (send(fd, request, request->head.nlmsg_len, 0) < 0)
        fail("ask for a list");
    receive(fd, flags == NLM_F_DUMP);
}

static void list(int fd, int type, const void *head, size_t size)
{
    struct request request;
    begin(&request, type, 0, head, size);
    get(fd, &request, NLM_F_DUMP);
}

/* Whoever filters a list has to be strict. */
static void be_strict(int fd)
{
    int yes = 1;
    if (setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &yes, sizeof yes))
        fail("be strict");
}

static void list_sockets(void)
{
    int fd = open_netlink(NETLINK_SOCK_DIAG);
    struct inet_diag_req both = {.idiag_states = STATES};
    list(fd, TCPDIAG_GETSOCK, &both, sizeof both);
    for (int i = 0; i < 2; i++) {
        struct inet_diag_req_v2 udp = {
            .sdiag_family = i ? AF_INET6 : AF_INET, .sdiag_protocol = IPPROTO_UDP, .idiag_states = STATES};
        list(fd, SOCK_DIAG_BY_FAMILY, &udp, sizeof udp);
    }
} /* It stays open: the kernel frees what is closed while it moves, and the moves wait for that. */

static void get_link(int fd, int ifindex)
{
    struct ifinfomsg head = {.ifi_index = ifindex};
    uint32_t skip = SKIP_STATISTICS;
    struct request request;
    begin(&request, RTM_GETLINK, 0, &head, sizeof head);
    put(&request, IFLA_EXT_MASK, &skip, sizeof skip);
    get(fd, &request, 0);
}

static void list_links(int fd)
{
    struct ifinfomsg head = {0};
    uint32_t skip = SKIP_STATISTICS;
    struct request request;
    begin(&request, RTM_GETLINK, 0, &head, sizeof head);
    put(&request, IFLA_EXT_MASK, &skip, sizeof skip);
    get(fd, &request, NLM_F_DUMP);
}

static void list_addresses(int fd, int ifindex)
{
    struct ifaddrmsg head = {.ifa_index = (uint32_t)ifindex};
    list(fd, RTM_GETADDR, &head, sizeof head);
}

static void list_routes(int fd)
{
    struct rtmsg head = {0};
    list(fd, RTM_GETROUTE, &head, sizeof head);
}

static void list_rules(int fd)
{
    for (int i = 0; i < 2; i++) {
        struct fib_rule_hdr head = {.family = i ? AF_INET6 : AF_INET};
        list(fd, RTM_GETRULE, &head, sizeof head);
    }
}

static void list_neighbours(int fd, int ifindex, int family, int flags)
{
    struct ndmsg head = {
        .ndm_family = (uint8_t)family, .ndm_flags = (uint8_t)flags, .ndm_ifindex = family ? ifindex : 0};
    struct request request;
    begin(&request, RTM_GETNEIGH, 0, &head, sizeof head);
    if (!family)
        put(&request, NDA_IFINDEX, &ifindex, sizeof ifindex);
    get(fd, &request, NLM_F_DUMP);
}

/* Features, private flags, rings, channels and coalescing, in one datagram; an answer or a refusal to each. */
static void show(int fd, int family, int ifindex)
{
    static const uint8_t commands[] = {ETHTOOL_MSG_FEATURES_GET, ETHTOOL_MSG_PRIVFLAGS_GET, ETHTOOL_MSG_RINGS_GET,
                                       ETHTOOL_MSG_CHANNELS_GET, ETHTOOL_MSG_COALESCE_GET};
    char datagram[sizeof commands * sizeof(struct request)];
    uint32_t compact = ETHTOOL_FLAG_COMPACT_BITSETS;
    size_t size = 0;
    for (size_t i = 0; i < sizeof commands; i++) {
        struct genlmsghdr head = {.cmd = commands[i], .version = 1};
        struct request request;
        begin(&request, family, 0, &head, sizeof head);
        request.head.nlmsg_flags = NLM_F_REQUEST;
        struct nlattr *device = nest(&request, ETHTOOL_A_FEATURES_HEADER);
        put(&request, ETHTOOL_A_HEADER_DEV_INDEX, &ifindex, sizeof ifindex);
        if (commands[i] != ETHTOOL_MSG_PRIVFLAGS_GET)
            put(&request, ETHTOOL_A_HEADER_FLAGS, &compact, sizeof compact);
        end(&request, device);
        memcpy(datagram + size, &request, request.head.nlmsg_len);
        size += NLMSG_ALIGN(request.head.nlmsg_len);
    }
    if (send(fd, datagram, size, 0) < 0)
        fail("ask ethtool");
    for (size_t i = 0; i < sizeof commands; i++)
        receive(fd, 0);
}

static void get_dcb(int fd, const char *name)
{
    struct dcbmsg head = {.cmd = DCB_CMD_IEEE_GET};
    struct request request;
    begin(&request, RTM_GETDCB, 0, &head, sizeof head);
    put(&request, DCB_ATTR_IFNAME, name, strlen(name) + 1);
    get(fd, &request, 0);
}

static void read_file(const char *path)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return; /* an older kernel does not have it */
    if (read(fd, text, sizeof text) < 0 && errno != EIO)
        fail(path);
    close(fd);
}

/* The sysctls that the kernel does not tell over netlink. */
static void read_sysctls(const char *name)
{
    static const char *files[] = {"ra_honor_pio_life", "ra_honor_pio_pflag", "regen_min_advance", "stable_secret"};
    char path[160];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "/proc/sys/net/ipv6/conf/%s/%s", name, files[i]);
        read_file(path);
    }
}

/* What the links carry, with the routes of all and how they are queued. */
static void capture(int host, int ethtool, int family, const struct link *links, int number)
{
    struct tcmsg queues = {0};
    struct ndtmsg tables = {0};
    for (int i = 0; i < number; i++) {
        get_link(host, links[i].ifindex);
        list_addresses(host, links[i].ifindex);
    }
    list_routes(host);
    list(host, RTM_GETQDISC, &queues, sizeof queues);
    for (int i = 0; i < number; i++)
        list_neighbours(host, links[i].ifindex, AF_BRIDGE, 0);
    list(host, RTM_GETNEIGHTBL, &tables, sizeof tables);
    for (int i = 0; i < number; i++) {
        read_sysctls(links[i].host_name);
        show(ethtool, family, links[i].ifindex);
        list_neighbours(host, links[i].ifindex, 0, 0);
        list_neighbours(host, links[i].ifindex, 0, NTF_PROXY);
        get_dcb(host, links[i].host_name);
    }
}

static void list_routing(int pod)
{
    list_addresses(pod, 0);
    list_routes(pod);
    list_rules(pod);
    read_file("/proc/sys/net/ipv6/conf/default/disable_ipv6");
}

/* Written beside and renamed, as a journal's record is. */
static void write_record(const char *pod, int links)
{
    static char record[OF_A_RECORD * (1 + MOST_LINKS)];
    char path[256], beside[256];
    size_t size = OF_A_RECORD * (size_t)(1 + links);
    snprintf(path, sizeof path, "%s.json", pod);
    snprintf(beside, sizeof beside, "%s.new", pod);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, record, size) != (ssize_t)size || close(fd) || rename(beside, path))
        fail(beside);
}

static void remove_record(const char *pod)
{
    char path[256];
    snprintf(path, sizeof path, "%s.json", pod);
    if (unlink(path) && errno != ENOENT)
        fail(path);
}

/* The links of the words, each with the settings that follow it; -1 for words that say nothing. */
static int read_links(struct link *links, char **words, int count)
{
    int number = 0;
    for (int i = 0; i < count; i++) {
        struct link *link = &links[number];
        if (strchr(words[i], ':') && number) {
            links[number - 1].settings++;
            continue;
        }
        if (number == MOST_LINKS || sscanf(words[i], "%d,%15[^,],%15[^,],%15[^/]/%d", &link->ifindex, link->host_name,
                                           link->pod_name, link->address, &link->length) != 5)
            return -1;
        link->setting = words + i + 1;
        link->settings = 0;
        number++;
    }
    return number;
}

int main(int count, char **words)
{
    static struct link links[MOST_LINKS];
    int looks = count > 4 && !strcmp(words[1], "attach"), is_in = count > 4 && (looks || !strcmp(words[1], "in"));
    int number = count > 4 ? read_links(links, words + 4, count - 4) : 0;
    if (number < 1)
        return 2;
    uint32_t mtu = (uint32_t)atoi(words[3]);
    int host_ethtool = open_netlink(NETLINK_GENERIC), family = links[0].settings ? ethtool_family(host_ethtool) : 0;
    uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    int host_namespace = open_namespace("/proc/self/ns/net"), pod_namespace = open_namespace(words[2]);
    int host = open_netlink(NETLINK_ROUTE);
    if (looks) {
        be_strict(host);
        list_sockets();
        capture(host, host_ethtool, family, links, number);
    }
    if (setns(pod_namespace, CLONE_NEWNET))
        fail("enter the pod's namespace");
    int pod = open_netlink(NETLINK_ROUTE), pod_ethtool = links[0].settings ? open_netlink(NETLINK_GENERIC) : -1;
    if (looks) {
        be_strict(pod);
        list_links(pod);
        list_routing(pod);
        list_rules(host);
        write_record(words[2], number);
    }
    for (int i = 0; i < number; i++) {
        struct link *link = &links[i];
        if (!is_in) {
            give_back(host, pod, host_namespace, link, mtu);
            set_features(host_ethtool, family, link, 1);
            continue;
        }
        attach(host, pod, pod_namespace, link, mtu);
        if (link->settings) {
            set_features(pod_ethtool, family, link, 0);
            configure(pod, link, mtu);
        }
    }
    for (int i = 0; looks && i < number; i++)
        get_link(pod, links[i].ifindex);
    if (looks)
        write_record(words[2], number);
    if (!is_in)
        remove_record(words[2]);
    printf("%llu %llu\n", (unsigned long long)(now(CLOCK_MONOTONIC) - wall),
           (unsigned long long)(now(CLOCK_PROCESS_CPUTIME_ID) - cpu));
    return 0;
}
