// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A congestion control as an ordinary library: PROGRAM is its source, OPS its struct_ops. This file
 * has minimal versions of the kernel functions that it calls.
 */
#include PROGRAM

/* State of the current call: tests run in threads of one process. */
static _Thread_local struct {
	u32 rtt0_us;
	u32 rto_min_us;
} stated_terms;

/* The option that the control set last. */
static _Thread_local u32 rto_min_set_us;

void *bpf_sk_storage_get(void *map, void *sk, void *value, unsigned long long flags)
{
	return &stated_terms;
}

long bpf_setsockopt(void *sk, int level, int name, void *value, int length)
{
	if (level != SOL_TCP || name != TCP_BPF_RTO_MIN || length != sizeof(u32))
		return -22;
	rto_min_set_us = *(u32 *)value;
	return 0;
}

u32 tcp_slow_start(struct tcp_sock *tp, u32 acked)
{
	u32 room = tp->snd_ssthresh - tp->snd_cwnd;

	tp->snd_cwnd += acked < room ? acked : room;
	return acked > room ? acked - room : 0;
}

void tcp_cong_avoid_ai(struct tcp_sock *tp, u32 window, u32 acked)
{
	tp->snd_cwnd_cnt += acked;
	tp->snd_cwnd += tp->snd_cwnd_cnt / window;
	tp->snd_cwnd_cnt %= window;
}

void tcp_reno_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (tp->snd_cwnd < tp->snd_ssthresh)
		acked = tcp_slow_start(tp, acked);
	if (acked)
		tcp_cong_avoid_ai(tp, tp->snd_cwnd, acked);
}

u32 tcp_reno_ssthresh(struct sock *sk)
{
	return max_u32(tcp_sk(sk)->snd_cwnd >> 1, 2);
}

u32 tcp_reno_undo_cwnd(struct sock *sk)
{
	return tcp_sk(sk)->snd_cwnd;
}

/* The socket fields that the simulation reads, and the values of an acknowledgement. */
struct view {
	u64 now_us;
	u64 stated_rate;
	u64 pacing_rate;
	u64 interval_us;
	u64 delivered_at_us; /* time of the last acknowledgement that acknowledged something */
	u32 rtt0_us;
	u32 rto_min_us;
	u32 rto_min_set_us;
	u32 srtt_us; /* in eighths */
	u32 rtt_us;
	u32 mss;
	u32 window;
	u32 threshold;
	u32 in_flight;
	u32 most_in_flight;
	u32 delivered;
	u32 prior_delivered;
	u32 acked;
	u32 lost;
	u32 sent;
	u32 state;
	u32 stamp_ms; /* of the receiver's clock; 0 without time stamps */
};

static void put(struct tcp_sock *tp, const struct view *view)
{
	struct sock *sk = &tp->inet_conn.icsk_inet.sk;

	stated_terms.rtt0_us = view->rtt0_us;
	stated_terms.rto_min_us = view->rto_min_us;
	rto_min_set_us = view->rto_min_set_us;
	tp->inet_conn.icsk_ca_state = view->state;
	sk->sk_max_pacing_rate = view->stated_rate ? view->stated_rate : ~0ul;
	sk->sk_pacing_rate = view->pacing_rate;
	tp->tcp_mstamp = view->now_us;
	tp->srtt_us = view->srtt_us;
	tp->mss_cache = view->mss;
	tp->snd_cwnd = view->window;
	tp->snd_ssthresh = view->threshold;
	tp->packets_out = view->in_flight;
	tp->max_packets_out = view->most_in_flight;
	tp->is_cwnd_limited = view->most_in_flight >= view->window;
	tp->delivered = view->delivered;
	tp->delivered_mstamp = view->delivered_at_us;
	tp->snd_nxt = view->sent;
	tp->snd_una = view->delivered;
	tp->rx_opt.rcv_tsval = view->stamp_ms;
}

static void take(const struct tcp_sock *tp, struct view *view)
{
	view->window = tp->snd_cwnd;
	view->threshold = tp->snd_ssthresh;
	view->rto_min_set_us = rto_min_set_us;
	view->pacing_rate = tp->inet_conn.icsk_inet.sk.sk_pacing_rate;
}

unsigned long simulated_size(void)
{
	return sizeof(struct tcp_sock);
}

/* `socket` is zeroed memory of the size above. */
void simulated_init(void *socket, struct view *view)
{
	put(socket, view);
	OPS.init(socket);
	take(socket, view);
}

void simulated_ack(void *socket, struct view *view)
{
	struct ack_sample sample = { view->acked, view->rtt_us, view->in_flight };
	struct rate_sample rate = {
		.prior_delivered = view->prior_delivered,
		.delivered = view->delivered - view->prior_delivered,
		.interval_us = view->interval_us,
		.rtt_us = view->rtt_us,
		.losses = view->lost,
		.acked_sacked = view->acked,
	};

	put(socket, view);
	if (OPS.pkts_acked)
		OPS.pkts_acked(socket, &sample);
	if (OPS.cong_control)
		OPS.cong_control(socket, view->delivered, 0, &rate);
	else if (view->state <= TCP_CA_Disorder)
		OPS.cong_avoid(socket, view->delivered, view->acked);
	take(socket, view);
}

/* Changes the state; entering recovery or loss sets the threshold, as the kernel does. */
void simulated_state(void *socket, struct view *view)
{
	put(socket, view);
	if (view->state >= TCP_CA_CWR)
		((struct tcp_sock *)socket)->snd_ssthresh = OPS.ssthresh(socket);
	if (OPS.set_state)
		OPS.set_state(socket, view->state);
	take(socket, view);
}

/* The kernel takes a timeout for spurious: it asks for the window, and the state ends. */
void simulated_undo(void *socket, struct view *view)
{
	put(socket, view);
	((struct tcp_sock *)socket)->snd_cwnd = OPS.undo_cwnd(socket);
	take(socket, view);
	view->state = TCP_CA_Open;
}
