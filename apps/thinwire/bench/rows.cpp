// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/bench/rows.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"

namespace thinwire::apps::bench {

namespace {

// Bytes per element: r is read, w is written. The letters are g gradient, p
// parameter, m and v moments, d denominator, e residual, x values, b one bit.
//
//   adam/fp32          r p4 m4 v4 g4, w p4 m4 v4                     28
//   adam/bf16_grads    the same with g2                              26
//   mixed_precision/adam_fp16, adam_bf16   (h the model's parameters) 30
//     is every gradient finite, how long: r g2                        2
//     unscale, clip, Adam, round: r p4 m4 v4 g2, w p4 m4 v4 h2       28
//   mixed_precision/adam_fp16_accumulated    the same with g4        34
//   zero2/shard_step, shard_step_bf16   as mixed_precision/adam_*     30
//   zero2/shard_step_accumulated        with g4                       34
//   offload/host_step  the same step, of a model on a device          30
//   norm/sum_of_squares  r x4                                         4
//   codec/encode       r x4 e4, w e4 b                               12.125
//   codec/decode       r b, w x4                                      4.125
//   onebit_adam/encode, serve@w4, apply   the worker, the server (per element
//     that it serves) and the update of a step below, kernels alone
//   lamb/fp32          one parameter far larger than the cache       40
//     moments and norms: r p4 m4 v4 g4, w m4 v4                      24
//     update: r p4 m4 v4, w p4                                       16
//   norm/during_backward   what the steps below need first: r g4      4
//   onebit_adam/compressed_step@w4                                   26.53
//     worker, on n: r g4 e4 b, w e4 b                                12.25
//     server, on n / W: r e4 and b of W ranks, w e4 b   (8.125 + W/8) / W
//     update, on n: r b d4 p4, w p4                                  12.125
//   onebit_adam/bf16_residual@w4   the same with e2                  21.53
//   onebit_lamb/compressed_step@w4   as 1-bit Adam, and              42.78
//     factors, on n: r b b f4 d4 p4, w f4 (f the fresh variance)     16.25
//   zero_one_adam/local_step   (u accumulated updates, t origin)     32
//     r g4 m4 u4 d4 t4, w m4 u4 p4                                   32
//   zero_one_adam/sync_step@w4                                       42.41
//     worker, on n: r g4 m4 u4 d4 e4, w e4 b                         24.125
//     server, as above                                                2.16
//     update, on n: r b d4 t4, w t4 p4                               16.125
//   low_rank/average_rank8   (a residual e, M their sum)               28
//     M and its product with Q: r g4 e4, w M4                        12
//     transpose(M) P: r M4                                            4
//     P transpose(Q) and the error: r M4, w M4 g4                    12
std::vector<Row> plain_rows() {
  constexpr double kServed = 8.125 + 4 / 8.0;
  constexpr double kServer = kServed / 4;
  constexpr auto kFp32 = DType::kFloat32, kFp16 = DType::kFloat16,
                 kBf16 = DType::kBFloat16;
  constexpr Limit kAdam = Limit::kAdamStreams;
  return {
      {"adam/fp32", 28, adam_step(kFp32), kAdam},
      {"adam/bf16_grads", 26, adam_step(kBf16), kAdam},
      {"mixed_precision/adam_fp16", 2 + 28, adam_step(kFp16, kFp16), kAdam},
      {"mixed_precision/adam_bf16", 2 + 28, adam_step(kBf16, kBf16), kAdam},
      {"mixed_precision/adam_fp16_accumulated", 4 + 30, adam_step(kFp32, kFp16),
       kAdam},
      {"zero2/shard_step", 2 + 28, zero_step(kFp16), kAdam},
      {"zero2/shard_step_bf16", 2 + 28, zero_step(kBf16), kAdam},
      {"zero2/shard_step_accumulated", 4 + 30, zero_step(kFp16, 2), kAdam},
      {"offload/host_step", 2 + 28, zero_step(kFp16), kAdam},
      {"norm/during_backward", 4, prepare_norm_during_backward},
      {"onebit_adam/compressed_step@w4", 12.25 + kServer + 12.125,
       onebit_adam_step()},
      {"onebit_adam/bf16_residual@w4", (12.25 - 4) + (kServed - 4) / 4 + 12.125,
       onebit_adam_step(kBf16)},
      {"onebit_adam/encode", 12.25, prepare_momentum_encode},
      {"onebit_adam/serve@w4", kServed, prepare_serve},
      {"onebit_adam/apply", 12.125, prepare_apply},
      {"lamb/fp32", 40, lamb_step()},
      {"onebit_lamb/compressed_step@w4", 12.25 + kServer + 16.25 + 12.125,
       onebit_lamb_step()},
      {"zero_one_adam/local_step", 32, prepare_local_step},
      {"zero_one_adam/sync_step@w4", 24.125 + kServer + 16.125,
       prepare_sync_step},
      {"codec/encode", 12.125, prepare_encode},
      {"codec/decode", 4.125, prepare_decode},
      {"low_rank/average_rank8", 28, low_rank_average(8), Limit::kTwice},
      {"norm/sum_of_squares", 4, prepare_norm, Limit::kAdd, true},
  };
}

constexpr std::string_view kPrefetchMark = "@prefetch_";

// Adds pairs of rows at the end that show the gain of kernels::prefetches().
std::vector<Row> all_rows() {
  std::vector<Row> rows = plain_rows();
  const std::size_t count = rows.size();
  for (const char* name : {"adam/fp32", "onebit_adam/compressed_step@w4",
                           "zero_one_adam/local_step"})
    for (std::size_t i = 0; i < count; ++i)
      if (rows[i].name == name)
        for (Row& row : by_prefetch(rows[i])) rows.push_back(std::move(row));
  return rows;
}

}  // namespace

std::array<Row, 2> by_prefetch(const Row& row) {
  std::array<Row, 2> pair = {row, row};
  for (const bool on : {true, false}) {
    Row& one = pair[on ? 0 : 1];
    one.name += fmt::format("{}{}", kPrefetchMark, on ? "on" : "off");
    one.prefetch = on;
  }
  return pair;
}

std::string Row::stem() const {
  return name.substr(0, name.find(kPrefetchMark));
}

std::span<const Row> rows() {
  static const std::vector<Row> rows = all_rows();
  return rows;
}

Buffer random_values(std::size_t elements, std::uint32_t seed) {
  Buffer buffer = Buffer::of<float>(elements);
  std::uint32_t state = seed * 2654435761u + 1;
  for (float& value : buffer.as<float>()) {
    state = state * 1664525u + 1013904223u;
    // An odd 24-bit integer, centred, is exact and never 0.
    const auto odd = static_cast<std::int32_t>(state >> 8 | 1u);
    value = static_cast<float>(odd - (1 << 23)) * 0x1p-23f;
  }
  return buffer;
}

}  // namespace thinwire::apps::bench
