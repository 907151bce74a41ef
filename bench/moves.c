/* The floor of an attach: the requests that it cannot do without, one after the other, and nothing else.
 *
 *   moves in|home POD_NAMESPACE MTU IFINDEX,HOST_NAME,POD_NAME,ADDRESS/LENGTH...
 *
 * runs in the namespace of the host. `in` moves each link into the pod under its new name and the same number, and
 * there sets its MTU, gives it its IPv4 address and raises it. `home` moves each back under its old name, sets the MTU
 * and raises it. Prints the nanoseconds that this took, and those of them that the process had a processor.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
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

struct link {
    int ifindex, length;
    char host_name[IFNAMSIZ], pod_name[IFNAMSIZ], address[INET_ADDRSTRLEN];
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

static void set_mtu(int fd, int ifindex, uint32_t mtu)
{
    struct ifinfomsg head = {.ifi_index = ifindex};
    struct request request;
    begin(&request, RTM_NEWLINK, 0, &head, sizeof head);
    put(&request, IFLA_MTU, &mtu, sizeof mtu);
    ask(fd, &request, "set the MTU");
}

static void add_address(int fd, const struct link *link)
{
    struct ifaddrmsg head = {
        .ifa_family = AF_INET, .ifa_prefixlen = (uint8_t)link->length, .ifa_index = (uint32_t)link->ifindex};
    struct request request;
    struct in_addr address;
    if (inet_pton(AF_INET, link->address, &address) != 1)
        fail(link->address);
    begin(&request, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &head, sizeof head);
    put(&request, IFA_LOCAL, &address, sizeof address);
    put(&request, IFA_ADDRESS, &address, sizeof address);
    ask(fd, &request, "add the address");
}

static void raise_link(int fd, int ifindex)
{
    struct ifinfomsg head = {.ifi_index = ifindex, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    struct request request;
    begin(&request, RTM_NEWLINK, 0, &head, sizeof head);
    ask(fd, &request, "raise");
}

static int open_netlink(void)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
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

static void attach(int host, int pod, int pod_namespace, const struct link *link, uint32_t mtu)
{
    move(host, link->ifindex, pod_namespace, link->pod_name);
    set_mtu(pod, link->ifindex, mtu);
    add_address(pod, link);
    raise_link(pod, link->ifindex);
}

static void give_back(int host, int pod, int host_namespace, const struct link *link, uint32_t mtu)
{
    move(pod, link->ifindex, host_namespace, link->host_name);
    set_mtu(host, link->ifindex, mtu);
    raise_link(host, link->ifindex);
}

int main(int count, char **words)
{
    struct link links[MOST_LINKS];
    int number = count - 4, is_in = count > 4 && !strcmp(words[1], "in");
    if (number < 1 || number > MOST_LINKS)
        return 2;
    for (int i = 0; i < number; i++)
        if (sscanf(words[4 + i], "%d,%15[^,],%15[^,],%15[^/]/%d", &links[i].ifindex, links[i].host_name,
                   links[i].pod_name, links[i].address, &links[i].length) != 5)
            return 2;
    uint32_t mtu = (uint32_t)atoi(words[3]);
    uint64_t wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    int host_namespace = open_namespace("/proc/self/ns/net"), pod_namespace = open_namespace(words[2]);
    int host = open_netlink();
    if (setns(pod_namespace, CLONE_NEWNET))
        fail("enter the pod's namespace");
    int pod = open_netlink();
    for (int i = 0; i < number; i++)
        if (is_in)
            attach(host, pod, pod_namespace, &links[i], mtu);
        else
            give_back(host, pod, host_namespace, &links[i], mtu);
    printf("%llu %llu\n", (unsigned long long)(now(CLOCK_MONOTONIC) - wall),
           (unsigned long long)(now(CLOCK_PROCESS_CPUTIME_ID) - cpu));
    return 0;
}
