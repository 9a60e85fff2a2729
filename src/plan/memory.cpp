// SPDX-License-Identifier: Apache-2.0
// Memory of a rank, as the "Memory" sections of docs/algorithms describe it.
#include "plan/parts.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

namespace {

constexpr double kFloat = 4;
// Bytes per element for a block's median, its floor, and its scales in records
// of workers and servers.
constexpr double kOfBlock = 16.0 / kBlock;
constexpr double kCodes = 1 + 8.0 / kBlock;  // 8 bits, and a cell's range

}  // namespace

PlannedMemory memory_of(Way way, bool by_host, const Workload& work,
                        const Network& network) {
  const double n = work.parameters;
  const auto dtype = static_cast<double>(size_of(work.dtype));
  const auto residual = static_cast<double>(size_of(work.residual_dtype));
  const double ranks = network.ranks;
  const double local = by_host ? network.ranks_per_host : 1;
  const bool compresses = network.ranks > 1;
  const double masters = dtype < kFloat ? kFloat : 0;
  const int bits_sent = wire_bits(way);
  const double bits = bits_sent == 32 ? 0 : record_bytes_per_element(bits_sent);
  const double residuals = compresses ? residual / local + residual / ranks : 0;
  const double bucket = bucket_elements_of(way, by_host, work, network);
  // Two slots for received records, each as large as a bucket's records.
  const double slots = compresses ? 2 * bucket / local * bits : 0;

  // The mean inside a host is fp32 and is stored beside 16-bit gradients.
  const double means = by_host && dtype < kFloat ? kFloat / local * n : 0;

  PlannedMemory memory{.parameters = dtype * n, .gradients = dtype * n};
  switch (way) {
    case Way::kExact:
      memory.states = (masters + 2 * kFloat) * n;  // m, v
      break;
    case Way::kTorchDdp:  // DDP's buckets, in addition to the gradients
      memory.states = (masters + 2 * kFloat) * n;
      memory.buckets = compresses ? dtype * n : 0;
      break;
    case Way::kDdpHook:
      memory.states = (masters + 2 * kFloat + residuals) * n;
      memory.buckets = (compresses ? dtype * n : 0) + slots;
      break;
    case Way::kLowRank:  // m, v, e, matrices, servers, means
      memory.gradients += compresses && dtype < kFloat ? kFloat * n : 0;
      memory.states = (masters + 2 * kFloat +
                       (compresses ? 2 * kFloat + kFloat / ranks : 0)) *
                      n;
      break;
    case Way::kOnebitAdam:  // d, m as records
      memory.gradients += means;
      memory.states = (masters + kFloat +
                       (compresses ? bits + kOfBlock : kFloat) + residuals) *
                      n;
      memory.buckets = slots;
      break;
    case Way::kZeroOneAdam:  // m, d, theta, u
      memory.states =
          (masters + (compresses ? 4 * kFloat + bits + kOfBlock : 3 * kFloat) +
           residuals) *
          n;
      memory.buckets = slots;
      break;
    case Way::kZero:  // a shard, and two buckets whose memory is reused
      memory.gradients = dtype * n / ranks;
      memory.states = (masters + 2 * kFloat) * n / ranks;
      memory.buckets = compresses ? 2 * bucket * dtype : 0;
      break;
    case Way::kZero8:
    case Way::kZero4: {  // bf16 residuals, the shard's mean
      const double own = compresses ? 2 / local : 0;
      memory.gradients = kFloat * n / ranks;
      memory.states = own * n + 3 * kFloat * n / ranks;
      memory.buckets = (compresses ? 2 * bucket * dtype : 0) + slots;
      break;
    }
    case Way::kOuter:  // m, d, the anchor, a residual, and the owners' arrays
      memory.states =
          (masters + 2 * kFloat +
           (compresses ? kFloat + kFloat / local + 2 * kFloat / ranks
                       : kFloat)) *
          n;
      memory.buckets = slots;
      break;
    case Way::kLean: {  // 16 low bits of parameters, codes, m as records
      const double of_parameters = dtype < kFloat ? 2 : 0;
      const double m = compresses ? bits + kOfBlock / 2 : kFloat;
      const double own = compresses ? 2 / local + 2 / ranks : 0;
      memory.gradients += means;
      memory.states = (of_parameters + kCodes + m + own) * n;
      memory.buckets = slots;
      break;
    }
  }
  return memory;
}

}  // namespace thinwire::plan
