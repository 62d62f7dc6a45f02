/* What build.rs reads: the structures that programs share with a verbs provider. */
#include <infiniband/verbs.h>
