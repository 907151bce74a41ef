/* What ibv_devinfo cannot tell: how many objects, and how much memory, the kernel grants to this process.
 *
 *   verbs-probe objects DEVICE COUNT      makes protection domains until COUNT or the first refusal, then keeps them
 *   verbs-probe ahs DEVICE COUNT          the same with address handles (beside one protection domain)
 *   verbs-probe qps DEVICE COUNT          the same with queue pairs (beside one protection domain and one queue)
 *   verbs-probe contexts DEVICE COUNT     the same with contexts
 *   verbs-probe register DEVICE BYTES     registers a buffer of so many bytes
 *
 * One line on stdout, `DONE NAME`: how many (or how many bytes) it got, and the error's name or `OK`.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int say(unsigned long done, int error)
{
	printf("%lu %s\n", done, error ? strerrorname_np(error) : "OK");
	fflush(stdout);
	return error ? 1 : 0;
}

static struct ibv_context *open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	errno = ENODEV;
	return NULL;
}

/* Queue pairs and address handles need these. */
static const char *device;
static struct ibv_pd *domain;
static struct ibv_cq *queue;
static union ibv_gid gid;

static void *make_domain(struct ibv_context *context)
{
	return ibv_alloc_pd(context);
}

static void *make_handle(struct ibv_context *context)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };

	(void)context;
	return ibv_create_ah(domain, &attr);
}

static void *make_pair(struct ibv_context *context)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = queue,
		.recv_cq = queue,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	(void)context;
	return ibv_create_qp(domain, &attr);
}

static void *make_context(struct ibv_context *context)
{
	(void)context;
	return open_device(device);
}

static int keep(struct ibv_context *context, unsigned long count, void *(*make)(struct ibv_context *))
{
	unsigned long made = 0;

	errno = 0;
	while (made < count && make(context))
		made++;
	say(made, made < count ? errno : 0);
	pause();
	return 0;
}

static int register_bytes(struct ibv_context *context, unsigned long bytes)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	void *buffer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!pd || buffer == MAP_FAILED || !ibv_reg_mr(pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE))
		return say(0, errno);
	return say(bytes, 0);
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	unsigned long number;

	if (argc != 4) {
		fprintf(stderr, "verbs-probe objects|ahs|qps|contexts|register DEVICE NUMBER\n");
		return 2;
	}
	device = argv[2];
	context = open_device(device);
	if (!context)
		return say(0, errno);
	number = strtoul(argv[3], NULL, 10);
	if (!strcmp(argv[1], "register"))
		return register_bytes(context, number);
	if (!strcmp(argv[1], "objects"))
		return keep(context, number, make_domain);
	if (!strcmp(argv[1], "contexts"))
		return keep(context, number, make_context);
	domain = ibv_alloc_pd(context);
	if (!domain || ibv_query_gid(context, 1, 0, &gid))
		return say(0, errno);
	if (!strcmp(argv[1], "ahs"))
		return keep(context, number, make_handle);
	queue = ibv_create_cq(context, 1, NULL, NULL, 0);
	return queue ? keep(context, number, make_pair) : say(0, errno);
}
