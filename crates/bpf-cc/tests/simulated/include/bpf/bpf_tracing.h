#pragma once
#define BPF_PROG(name, args...) name(args)

/* The kernel's calling convention since Linux 6.10. */
#define CONG_CONTROL(name, args...)                                                             \
	static void name##_by_sample(args);                                                     \
	static void name(struct sock *sk, u32 ack, int flag, const struct rate_sample *sample)  \
	{                                                                                       \
		name##_by_sample(sk, sample);                                                   \
	}                                                                                       \
	static void name##_by_sample(args)
