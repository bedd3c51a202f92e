#pragma once
#define BPF_CORE_READ_BITFIELD(structure, field) ((structure)->field)
