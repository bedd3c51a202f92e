// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * TCP Hybla, step for step as the kernel's own module, for kernels without it: windows grow per
 * acknowledgement event, bounded only by the kernel, without pacing.
 *
 * Caini and Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks",
 * International Journal of Satellite Communications and Networking 22 (2004).
 */
#include "rtt0.h"

struct hybla {
	u32 rtt0_us;
	u32 least_srtt; /* as tcp_sock.srtt_us: eighths of us; the minimum */
	u32 rho_8;      /* rho in eighths */
	u32 cents;      /* fraction of a segment, in 1/128, not yet in the window */
	u32 unmoved;    /* acknowledgements too small to move the window */
	bool scales;    /* not in recovery */
};

static __always_inline void note_rtt(struct tcp_sock *tp, struct hybla *h)
{
	h->least_srtt = tp->srtt_us;
	h->rho_8 = rho_eighths(tp->srtt_us, h->rtt0_us);
}

SEC("struct_ops")
void BPF_PROG(hybla_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *h = ca_state(sk);

	state_rto_min(sk);
	h->rtt0_us = rtt0_of(sk);
	h->scales = 1;
	h->cents = 0;
	h->unmoved = 0;
	note_rtt(tp, h);
	tp->snd_cwnd = h->rho_8 >> 3;
}

SEC("struct_ops")
void BPF_PROG(hybla_set_state, struct sock *sk, u8 state)
{
	struct hybla *h = ca_state(sk);

	h->scales = state == TCP_CA_Open;
}

SEC("struct_ops")
void BPF_PROG(hybla_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *h = ca_state(sk);
	u32 window = max_u32(tp->snd_cwnd, 1);
	bool slow_start;
	u32 increment;

	if (tp->srtt_us < h->least_srtt)
		note_rtt(tp, h);
	if (!window_limits(tp))
		return;
	if (!h->scales) {
		tcp_reno_cong_avoid(sk, ack, acked);
		return;
	}

	slow_start = window < tp->snd_ssthresh;
	if (slow_start) {
		increment = slow_start_increment(h->rho_8);
	} else {
		increment = avoidance_increment(h->rho_8, window);
		if (increment < 128)
			h->unmoved++;
	}
	h->cents += increment & 127;
	window += increment >> 7;
	if (h->cents >= 128) {
		h->cents -= 128;
		h->unmoved = 0;
		window++;
	}
	if (!increment && h->unmoved >= window) {
		h->unmoved = 0;
		window++;
	}
	if (slow_start)
		window = min_u32(window, tp->snd_ssthresh);
	tp->snd_cwnd = min_u32(window, WINDOW_MAX);
}

SEC("struct_ops")
u32 BPF_PROG(hybla_ssthresh, struct sock *sk)
{
	return tcp_reno_ssthresh(sk);
}

SEC("struct_ops")
u32 BPF_PROG(hybla_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops pepd_hybla = {
	.init = (void *)hybla_init,
	.set_state = (void *)hybla_set_state,
	.cong_avoid = (void *)hybla_cong_avoid,
	.ssthresh = (void *)hybla_ssthresh,
	.undo_cwnd = (void *)hybla_undo_cwnd,
	.name = "hybla",
};
