/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Stubs of libbpf's headers, to compile the programs as ordinary functions. */
#pragma once

#define SEC(name)
#define __ksym
#define __always_inline inline
#define __noinline __attribute__((noinline))
#define __uint(name, value) int(*name)[value]
#define __type(name, type) type *name

long bpf_setsockopt(void *sk, int level, int name, void *value, int length);
void *bpf_sk_storage_get(void *map, void *sk, void *value, unsigned long long flags);
