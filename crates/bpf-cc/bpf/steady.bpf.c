// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
/*
 * A constant window for the stated rate, paced, ignoring loss: for a link without other traffic.
 * After the "Unfair" control of Reynolds (2006, section 3.2.3), whose window does not shrink when
 * acknowledgements stop.
 *
 * The rate is SO_MAX_PACING_RATE. A socket without it gets ten segments or fewer per round
 * trip; pepd rejects a site with this control and no rate.
 */
#include "cong_control.h"
#include "path.h"
#include "stated.h"

/* Above the bandwidth-delay product, in 1/128: acknowledgements are bunched and late. */
#define HEADROOM 144
#define WINDOW_UNSTATED 10u

struct steady {
	struct path path;
	bool woken; /* as in hybla_sat */
};

static __always_inline void hold(struct sock *sk, struct steady *s)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct path *p = &s->path;
	u64 rate = stated_rate(sk);
	u64 window = WINDOW_UNSTATED;

	if (rate && p->least_rtt_us) {
		window += segments_of(tp, rate, path_span_us(p)) * HEADROOM >> 7;
		pace_at(sk, rate);
	}
	if (path_probes(p))
		window >>= 1;
	window = min_u64(window, WINDOW_MAX);
	tp->snd_cwnd = s->woken ? waking_window(tp, window, p->least_rtt_us) : window;
	s->woken = 0;
}

SEC("struct_ops")
void BPF_PROG(steady_init, struct sock *sk)
{
	struct steady *s = ca_state(sk);

	state_rto_min(sk);
	path_init(tcp_sk(sk), &s->path);
	hold(sk, s);
}

CONG_CONTROL(steady_cong_control, struct sock *sk, const struct rate_sample *rs)
{
	struct steady *s = ca_state(sk);

	s->woken |= is_stalled(tcp_sk(sk), rs, s->path.least_rtt_us);
	if (!s->woken)
		path_note_rtt(tcp_sk(sk), &s->path, rs->rtt_us, 0);
	path_note_rate(tcp_sk(sk), &s->path, rs, 1);
	hold(sk, s);
}

SEC("struct_ops")
u32 BPF_PROG(steady_ssthresh, struct sock *sk)
{
	return max_u32(tcp_sk(sk)->snd_cwnd, 2);
}

SEC("struct_ops")
u32 BPF_PROG(steady_undo_cwnd, struct sock *sk)
{
	struct steady *s = ca_state(sk);

	s->woken = in_timeout(sk);
	return tcp_sk(sk)->snd_cwnd;
}

/* In windows: a segment that is lost twice blocks three windows behind it. */
SEC("struct_ops")
u32 BPF_PROG(steady_sndbuf_expand, struct sock *sk)
{
	return 5;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops pepd_steady = {
	.init = (void *)steady_init,
	.cong_control = (void *)steady_cong_control,
	.ssthresh = (void *)steady_ssthresh,
	.undo_cwnd = (void *)steady_undo_cwnd,
	.sndbuf_expand = (void *)steady_sndbuf_expand,
	.name = "steady",
};
