// SPDX-License-Identifier: Apache-2.0
// Reads arrays that differ between ranks after the ranks or hosts have changed.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/read/mean_of_ranks.h"
#include "checkpoint/read/state_reader.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

std::int64_t StateReader::saved(const char* integer) const {
  const StateDict& scalars = manifest_.scalars;
  return scalars.has_scalar(integer) ? scalars.integer(integer) : 0;
}

bool StateReader::are_same_ranks(const optim::State& target) const {
  const auto now = [&](const char* integer) {
    return target.common.has_scalar(integer) ? target.common.integer(integer)
                                             : 0;
  };
  return comm_.size() == saved_world() &&
         saved(optim::kRanksPerHost) == now(optim::kRanksPerHost) &&
         saved(optim::kHostLayout) == now(optim::kHostLayout);
}

std::vector<int> StateReader::ranks_to_read(bool of_host) const {
  const auto& scalars = manifest_.scalars_of_ranks;
  const auto host_of = [&](int rank) {
    return scalars.at(static_cast<std::size_t>(rank)).integer(optim::kHost);
  };
  const bool is_flat = saved(optim::kRanksPerHost) == 0;
  std::vector<int> ranks;
  for (int r = 0; r < saved_world(); ++r)
    if (is_flat || !of_host || host_of(r) == host_of(comm_.rank()))
      ranks.push_back(r);
  return ranks;
}

// Averages in rank order. In a hierarchical state each rank stores a piece of
// its host's values.
StateReader::Read StateReader::mean_of_ranks(const SavedArray& array,
                                             std::vector<Range> ranges,
                                             bool stays_own) {
  return [this, &array, ranges = std::move(ranges), stays_own](Range part,
                                                               View to) {
    const std::vector<int> ranks = ranks_to_read(stays_own);
    for_rows(ranges, part, to, [&](const Row& row, View values) {
      if (stays_own && has_all(array, comm_.rank(), row))
        arrays_.read(array.name, comm_.rank(), row.parameter, row.range,
                     values);
      else
        read_mean(array, ranks, row, values);
    });
  };
}

bool StateReader::has_all(const SavedArray& array, int rank,
                          const Row& row) const {
  std::size_t size = 0;
  for (const SavedPiece& piece :
       arrays_.pieces(array.name, rank, row.parameter, row.range))
    size += piece.range.size;
  return size == row.range.size;
}

// The same number of ranks saved each element: one rank per host, or all ranks.
void StateReader::read_mean(const SavedArray& array, std::span<const int> ranks,
                            const Row& row, View to) {
  const auto per_host = static_cast<std::size_t>(
      std::max<std::int64_t>(1, saved(optim::kRanksPerHost)));
  MeanOfRanks mean(row.range.size);
  std::size_t added = 0;
  for (const int r : ranks)
    for (const SavedPiece& piece :
         arrays_.pieces(array.name, r, row.parameter, row.range)) {
      Buffer values(piece.range.size, array.dtype);
      arrays_.read(array.name, r, row.parameter, piece.range, values.view());
      mean.add(std::as_const(values).view(),
               piece.range.offset - row.range.offset);
      added += piece.range.size;
    }
  if (!mean.is_of(ranks.size()) && !mean.is_of(ranks.size() / per_host))
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("'{}' must be of {} ranks for every element, got "
                    "{} values for {} elements of {}",
                    array.name, ranks.size() / per_host, added, row.range.size,
                    manifest_.parameters[row.parameter].name));
  mean.write(to);
}

}  // namespace thinwire::checkpoint
