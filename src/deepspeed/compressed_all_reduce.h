// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::deepspeed {

/// Returns the size of a unit with its padding, a multiple of W lcm(8, W).
[[nodiscard]] std::size_t padded_size(std::size_t size, int world);

/// DeepSpeed's error-compensated all-reduce, in plain loops. Each unit is
/// padded and cut into W chunks, one per server. A worker has one scale per
/// unit, a server one per chunk. Padding contributes to the scales and has
/// residuals.
class CompressedAllReduce {
 public:
  /// `units` are ranges of the caller's flat array; empty ones are ignored.
  /// `comm` must outlive this object.
  CompressedAllReduce(comm::Communicator& comm, std::span<const Range> units);

  /// Replaces the units of `values` with the compressed average over the ranks.
  /// Like DeepSpeed, checks nothing. Collective and blocking.
  void all_reduce(std::span<float> values);

  /// Returns the residuals of all units with their padding, one unit after the
  /// other.
  [[nodiscard]] ConstView worker_error() const { return worker_error_.view(); }
  /// Returns the residuals of the chunks that this rank serves.
  [[nodiscard]] ConstView server_error() const { return server_error_.view(); }
  void clear_errors();
  /// Replaces the residuals with arrays of the same sizes.
  void take_errors(Buffer&& worker, Buffer&& server);

  /// Sets the observer, or none if null. It numbers blocks server by server,
  /// and within a server by unit, without empty units.
  void set_observer(exchange::WireObserver* observer) { observer_ = observer; }
  /// Returns the seconds that all_reduce() has spent waiting for other ranks
  /// since construction.
  [[nodiscard]] double wait_seconds() const { return waited_; }

 private:
  struct Unit {
    Range values;
    std::size_t first = 0;   // index of its first residual
    std::size_t chunk = 0;   // elements of a chunk
    std::size_t record = 0;  // byte offset in the records of a server
  };
  // Records sent to one rank or received from it.
  using Records = std::vector<std::uint8_t>;

  [[nodiscard]] std::uint8_t* record(Records& of_all, std::size_t rank,
                                     const Unit& unit) const {
    return of_all.data() + rank * records_size_ + unit.record;
  }
  void encode(const Unit& unit, const float* x, Records& sent);
  void average(const Unit& unit, Records& received, std::uint8_t* to);
  void decode(const Unit& unit, Records& results, float* x) const;
  void show(bool of_worker, std::size_t first_block, Records& records) const;

  comm::Communicator& comm_;
  std::size_t world_;
  std::vector<Unit> units_;
  std::size_t records_size_ = 0;
  Buffer worker_error_;
  Buffer server_error_;
  exchange::WireObserver* observer_ = nullptr;
  double waited_ = 0;
};

}  // namespace thinwire::deepspeed
