/*
 * A verbs program as anybody writes one: it knows nothing of what provides the verbs. Two devices that reach each other are
 * looked for, and one of the cases below is run over them. It ends with 0 if everything was as the verbs have it, else it says
 * what was not.
 */
#include "program.h"

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(struct end *, struct end *);
	} cases[] = { { "grh", grh }, { "stale", stale }, { "short", short_buffer }, { "keys", keys }, { "full", full },
		{ "overrun", overrun }, { "outstanding", outstanding }, { "forked", forked }, { "threads", threads },
		{ "cycles", cycles }, { "extended", extended }, { "events", events }, { "refused", refused }, { "ending", ending }, { "lists", lists },
		{ "alike", alike }, { "odd", odd }, { "held", held } };
	struct end a, b;
	open_device(0);
	open_device(1);
	make(&a, 0, 16, 16);
	make(&b, 1, 16, 64);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int n = 1; n < argc; n++)
			if (!strcmp(cases[i].name, argv[n])) {
				cases[i].run(&a, &b);
				printf("%s: right\n", argv[n]);
				fflush(stdout);
			}
	unmake(&a);
	unmake(&b);
	EQUAL(ibv_close_device(contexts[0]), 0);
	EQUAL(ibv_close_device(contexts[1]), 0);
	return 0;
}
