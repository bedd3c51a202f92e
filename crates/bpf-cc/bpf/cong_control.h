/* SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only */
/* CONG_CONTROL: a control's cong_control, for kernels that call it with two or four arguments. */
#ifndef PEPD_BPF_CONG_CONTROL_H
#define PEPD_BPF_CONG_CONTROL_H

#include "tcp.h"

#ifndef CONG_CONTROL

/*
 * True if the kernel calls cong_control with the socket and the sample only, before Linux 6.10:
 * set by the loader, in a separate section so that its map contains nothing else.
 */
const volatile bool two_arguments SEC(".rodata.cc");

/* The verifier skips the branch that is not taken, and so the argument that does not exist. */
static __always_inline const struct rate_sample *sample_of(unsigned long long *ctx)
{
	const struct rate_sample *sample;

	if (two_arguments) {
		sample = (void *)ctx[1];
		/* Else clang merges both loads into one that the verifier rejects. */
		asm volatile("" : "+r"(sample));
		return sample;
	}
	return (void *)ctx[3];
}

/* cong_control of the socket and the sample. */
#define CONG_CONTROL(name, args...)                                \
	static __always_inline void name##_by_sample(args);        \
	SEC("struct_ops") void name(unsigned long long *ctx)       \
	{                                                          \
		name##_by_sample((void *)ctx[0], sample_of(ctx));  \
	}                                                          \
	static __always_inline void name##_by_sample(args)

#endif

#endif
