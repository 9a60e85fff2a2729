// SPDX-License-Identifier: Apache-2.0
#include "comm/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/require.h"
#include "core/require_view.h"

namespace thinwire::comm::arguments {
void require_memory(std::string_view call, std::string_view argument,
                    ConstView view) {
  if (view.is_joined())
    reject(fmt::format("{}: {} must be of one dtype, got two", call, argument));
  if (view.data() == nullptr && !view.empty()) {
    reject(fmt::format(
        "{}: {} must not be null, got a null pointer to {} elements", call,
        argument, view.size()));
  }
}

void require_reducible(std::string_view call, ReduceOp op, DType dtype) {
  const bool is_integer = dtype == DType::kInt32 || dtype == DType::kInt64 ||
                          dtype == DType::kUInt8;
  if (op == ReduceOp::kMean && is_integer) {
    reject(fmt::format(
        "{}: dtype must be float32, float16, bfloat16 or float64 for kMean, "
        "got {}",
        call, to_string(dtype)));
  }
}

void require_same_dtype(std::string_view call, ConstView input, View output) {
  if (input.dtype() != output.dtype()) {
    reject(fmt::format("{}: output must have the dtype of input, {}, got {}",
                       call, to_string(input.dtype()),
                       to_string(output.dtype())));
  }
}

void require_same_or_wider(std::string_view call, ReduceOp op, ConstView input,
                           View output) {
  const bool is_short =
      input.dtype() == DType::kFloat16 || input.dtype() == DType::kBFloat16;
  if (!is_short) return require_same_dtype(call, input, output);
  if (output.dtype() == input.dtype()) return;
  if (output.dtype() != DType::kFloat32) {
    reject(fmt::format(
        "{}: output must have the dtype of input, {}, or float32, got {}", call,
        to_string(input.dtype()), to_string(output.dtype())));
  }
  if (op == ReduceOp::kMax) {
    reject(fmt::format(
        "{}: op must be kSum or kMean for {} into float32, got kMax", call,
        to_string(input.dtype())));
  }
}

void require_multiple(std::string_view call, std::string_view large_name,
                      std::size_t large, std::string_view small_name,
                      std::size_t small, int world_size) {
  const auto ranks = static_cast<std::size_t>(world_size);
  if (large % ranks != 0 || large / ranks != small) {
    reject(fmt::format(
        "{}: {}.size() must be size() * {}.size() = {} * {}, got {}", call,
        large_name, small_name, ranks, small, large));
  }
}

void require_counts(std::string_view call, std::string_view counts_name,
                    std::span<const std::size_t> counts, int world_size,
                    std::string_view view_name, std::size_t view_size) {
  if (counts.size() != static_cast<std::size_t>(world_size)) {
    reject(fmt::format("{}: {}.size() must be size() = {}, got {}", call,
                       counts_name, world_size, counts.size()));
  }
  std::size_t left = view_size;
  for (const std::size_t count : counts) {
    if (count > left) {
      reject(fmt::format("{}: {} must add up to {}.size() = {}, got more", call,
                         counts_name, view_name, view_size));
    }
    left -= count;
  }
  if (left != 0) {
    reject(fmt::format("{}: {} must add up to {}.size() = {}, got {}", call,
                       counts_name, view_name, view_size, view_size - left));
  }
}

void require_pieces(std::string_view call, std::span<const Range> pieces,
                    int world_size, std::string_view view_name,
                    std::size_t view_size) {
  if (pieces.size() != static_cast<std::size_t>(world_size)) {
    reject(fmt::format("{}: pieces.size() must be size() = {}, got {}", call,
                       world_size, pieces.size()));
  }
  std::vector<Range> sorted;
  for (const Range& piece : pieces)
    if (piece.size > 0) sorted.push_back(piece);
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& a, const Range& b) { return a.offset < b.offset; });
  std::size_t end = 0;
  for (const Range& piece : sorted) {
    if (piece.offset != end || piece.size > view_size - end) break;
    end = piece.end();
    if (&piece == &sorted.back() && end == view_size) return;
  }
  if (sorted.empty() && view_size == 0) return;
  reject(fmt::format(
      "{}: pieces must be neighbours that cover {} = [0, {}), got others from "
      "{} on",
      call, view_name, view_size, end));
}

void require_hosts(const CommunicatorOptions& options, int rank,
                   int world_size) {
  constexpr std::string_view kName = "CommunicatorOptions.hosts";
  const Hosts& hosts = options.hosts;
  if (hosts.is_flat()) return;
  require(hosts.size >= 1 && hosts.ranks_per_host >= 1 &&
              static_cast<std::int64_t>(hosts.size) * hosts.ranks_per_host ==
                  world_size &&
              hosts.ranks.size() == static_cast<std::size_t>(world_size),
          kName, fmt::format("of all {} ranks", world_size),
          fmt::format("{} * {}, and {} in .ranks", hosts.size,
                      hosts.ranks_per_host, hosts.ranks.size()));
  std::vector<int> sorted = hosts.ranks;
  std::sort(sorted.begin(), sorted.end());
  for (int r = 0; r < world_size; ++r)
    require(sorted[static_cast<std::size_t>(r)] == r, kName,
            "of every rank once",
            fmt::format("[{}]", fmt::join(hosts.ranks, " ")));
  const auto per_host = static_cast<std::size_t>(hosts.ranks_per_host);
  for (std::size_t at = 1; at < hosts.ranks.size(); ++at) {
    const std::size_t before = at % per_host == 0 ? at - per_host : at - 1;
    require(hosts.ranks[before] < hosts.ranks[at], kName,
            "in the order of ranks",
            fmt::format("[{}]", fmt::join(hosts.ranks, " ")));
  }
  const std::int64_t own =
      static_cast<std::int64_t>(hosts.index) * hosts.ranks_per_host +
      hosts.local_rank;
  require(
      hosts.index >= 0 && hosts.index < hosts.size && hosts.local_rank >= 0 &&
          hosts.local_rank < hosts.ranks_per_host &&
          hosts.ranks[static_cast<std::size_t>(own)] == rank,
      kName, fmt::format("of rank {}", rank),
      fmt::format("local rank {} of host {}", hosts.local_rank, hosts.index));
}

void require_equal(std::string_view call, std::string_view name,
                   std::size_t value, std::string_view wanted_name,
                   std::size_t wanted) {
  if (value != wanted)
    reject(fmt::format("{}: {} must be {} = {}, got {}", call, name,
                       wanted_name, wanted, value));
}

void require_no_overlap(std::string_view call, ConstView input,
                        ConstView output) {
  if (overlap(input, output))
    reject(fmt::format(
        "{}: input and output must not overlap, got memory that does", call));
}

}  // namespace thinwire::comm::arguments
