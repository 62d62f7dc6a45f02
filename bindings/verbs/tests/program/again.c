/*
 * Opens the first device, which has nobody to go to yet, then the second, to which it goes, and then the first again. With a word, the
 * first only, twice: whatever is wrong with it stays so.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	(void)argv;
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	if (!list || count < 1)
		return 2;
	struct ibv_context *first = ibv_open_device(list[0]);
	printf("first %s %d\n", first ? "opened" : "failed", first ? 0 : errno == ENODEV);
	if (argc == 1) {
		struct ibv_context *second = count > 1 ? ibv_open_device(list[1]) : NULL;
		printf("second %s\n", second ? "opened" : "failed");
	}
	first = ibv_open_device(list[0]);
	struct ibv_port_attr port = { 0 };
	int asked = first ? ibv_query_port(first, 1, &port) : -1;
	printf("again %s %d\n", first ? "opened" : "failed", asked);
	ibv_free_device_list(list);
	/* Open as it is, which the end has to know how to deal with. */
	return 0;
}
