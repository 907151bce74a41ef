/* What ibv_devinfo cannot tell: how many objects, and how much memory, the kernel grants to this process.
 *
 *   verbs-probe objects DEVICE COUNT      makes protection domains until COUNT or the first refusal, then keeps them
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

static int objects(struct ibv_context *context, unsigned long count)
{
	unsigned long made = 0;

	errno = 0;
	while (made < count && ibv_alloc_pd(context))
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

	if (argc != 4) {
		fprintf(stderr, "verbs-probe objects|register DEVICE NUMBER\n");
		return 2;
	}
	context = open_device(argv[2]);
	if (!context)
		return say(0, errno);
	if (!strcmp(argv[1], "objects"))
		return objects(context, strtoul(argv[3], NULL, 10));
	return register_bytes(context, strtoul(argv[3], NULL, 10));
}
