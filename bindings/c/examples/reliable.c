/*
 * A reliable message of a megabyte to another process and back. One waits, the other has the first one's address:
 *
 *   reliable "net_memif0,role=server,id=0,socket=reliable" 192.0.2.1
 *   reliable "net_memif0,role=client,id=0,socket=reliable" 192.0.2.2 192.0.2.1
 *
 * cc reliable.c -I../include -lspraywire
 */
#include <spraywire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QPN 0x4000u
#define SIZE 1000000

static uint8_t out[SIZE], in[SIZE];
static spw_endpoint_t *endpoint;

static int check(const char *what, int result)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s\n", what, spw_last_error());
		exit(1);
	}
	return result;
}

/* Waits for the next event. Packets move within spw_poll_messages() only. */
static spw_event next_event(void)
{
	spw_event event;
	while (check("event", spw_poll_event(endpoint, &event)) == 0) {
		spw_done done;
		check("poll", spw_poll_messages(endpoint, &done, 1));
	}
	return event;
}

/* Waits for `count` messages to be done. */
static spw_done wait_for(int count)
{
	spw_done done = { 0 }, last = { 0 };
	while (count > 0) {
		if (check("poll", spw_poll_messages(endpoint, &done, 1)) == 0)
			continue;
		if (done.status != 0) {
			fprintf(stderr, "message %d: status %u\n", (int)done.wr_id, done.status);
			exit(1);
		}
		if (done.is_receive)
			last = done;
		count--;
	}
	return last;
}

/* What was said last has to reach a peer that may not be looking just now. */
static void linger(void)
{
	struct timespec now, start;
	timespec_get(&start, TIME_UTC);
	do {
		check("poll", spw_poll_messages(endpoint, NULL, 0));
		timespec_get(&now, TIME_UTC);
	} while (now.tv_sec <= start.tv_sec + 1);
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: %s PORT ADDRESS [PEER]\n", argv[0]);
		return 2;
	}
	int client = argc == 4;
	spw_config config = { .port = argv[1], .addresses = argv[2] };
	spw_reliable_config reliable = { .qpn = QPN, .listen = !client };
	uint32_t qpn;
	uint64_t session;
	check("open", spw_open(&config, &endpoint));
	check("start", spw_reliable_start(endpoint, &reliable, &qpn));
	if (client)
		check("connect", spw_connect(endpoint, argv[3], QPN, &session));
	spw_event event = next_event();
	if (!event.is_up) {
		fprintf(stderr, "%s\n", event.reason);
		return 1;
	}
	session = event.session;
	printf("open to %s\n", event.peer);

	spw_message there = { .wr_id = 1, .session = session, .communicator = 1, .tag = 7 };
	/* What it is: over a long way it is protected as such. */
	there.traffic_class = 2;
	there.priority = 8;
	spw_message back = { .wr_id = 2, .session = session, .communicator = 1, .tag = 8 };
	if (client) {
		for (int i = 0; i < SIZE; i++)
			out[i] = (uint8_t)(i * 31 + i / 251);
		check("receive", spw_recv_message(endpoint, &back, in, sizeof in));
		check("send", spw_send_message(endpoint, &there, out, sizeof out));
		spw_done done = wait_for(2);
		int same = done.len == SIZE && memcmp(in, out, SIZE) == 0;
		printf("%d bytes came back %s\n", (int)done.len, same ? "as they were" : "changed");
		spw_session_figures stats;
		check("figures", spw_session_stats(endpoint, session, &stats));
		printf("%d segments sent, %d sent again, %d received\n", (int)stats.segments_sent,
		       (int)stats.retransmitted, (int)stats.segments_received);
		check("disconnect", spw_disconnect(endpoint, session));
	} else {
		check("receive", spw_recv_message(endpoint, &there, in, sizeof in));
		spw_done done = wait_for(1);
		printf("%d bytes\n", (int)done.len);
		check("send", spw_send_message(endpoint, &back, in, done.len));
		wait_for(1);
	}
	event = next_event();
	printf("gone: %s\n", event.reason);
	linger();
	spw_close(endpoint);
	return 0;
}
