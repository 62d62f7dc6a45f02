/*
 * Two processes greet each other. One waits, the other has the first one's address and queue pair number:
 *
 *   hello "net_memif0,role=server,id=0,socket=hello" 192.0.2.1
 *   hello "net_memif0,role=client,id=0,socket=hello" 192.0.2.2 192.0.2.1 0x10000
 *
 * cc hello.c -I../include -lspraywire
 */
#include <spraywire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QKEY 0x11111111u
#define GRH 40

static int check(const char *what, int result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, spw_last_error());
		exit(1);
	}
	return result;
}

/* What was said last has to reach a peer that may not be looking just now. */
static void linger(spw_endpoint_t *endpoint)
{
	struct timespec now, start;
	timespec_get(&start, TIME_UTC);
	do {
		check("poll", spw_poll(endpoint, NULL, 0));
		timespec_get(&now, TIME_UTC);
	} while (now.tv_sec <= start.tv_sec + 1);
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 5) {
		fprintf(stderr, "usage: %s PORT ADDRESS [PEER QPN]\n", argv[0]);
		return 2;
	}
	spw_config config = { .port = argv[1], .addresses = argv[2] };
	spw_endpoint_t *endpoint;
	uint32_t qpn;
	check("open", spw_open(&config, &endpoint));
	check("queue pair", spw_qp_create(endpoint, QKEY, 16, 16, &qpn));
	static uint8_t buffer[GRH + 4096];
	check("receive", spw_post_recv(endpoint, qpn, 1, buffer, sizeof buffer));
	printf("queue pair %#x\n", qpn);
	fflush(stdout);

	char text[100];
	int sends = 0, left = 2; /* a receive and a send */
	uint64_t ah = 0;
	spw_send send = { .wr_id = 2, .qpn = qpn, .qkey = QKEY, .signaled = 1 };
	if (argc == 5) {
		check("address", spw_ah_create(endpoint, argv[3], 10000, &ah));
		send.dst_qpn = strtoul(argv[4], NULL, 0);
		snprintf(text, sizeof text, "hello from %s", argv[2]);
		sends = 1;
	}
	while (left > 0) {
		if (sends > 0) {
			send.ah = ah;
			int result = spw_post_send(endpoint, &send, text, strlen(text));
			if (result != -SPW_ERROR_AGAIN) {
				check("send", result);
				sends = 0;
			}
		}
		spw_completion done;
		if (check("poll", spw_poll(endpoint, &done, 1)) == 0)
			continue;
		if (done.status != 0) {
			fprintf(stderr, "work request %d: status %u\n", (int)done.wr_id, done.status);
			return 1;
		}
		left--;
		if (!done.is_receive)
			continue;
		printf("%.*s\n", (int)(done.byte_len - GRH), (char *)buffer + GRH);
		if (argc == 3) {
			/* Back to where it came from: the last eight bytes of the GRH area are an IPv4 header's addresses. */
			char from[16];
			snprintf(from, sizeof from, "%d.%d.%d.%d", buffer[32], buffer[33], buffer[34], buffer[35]);
			check("address", spw_ah_create(endpoint, from, 10000, &ah));
			send.dst_qpn = done.src_qpn;
			snprintf(text, sizeof text, "hello back from %s", argv[2]);
			sends = 1;
		}
	}
	linger(endpoint);
	spw_ah_destroy(endpoint, ah);
	spw_close(endpoint);
	return 0;
}
