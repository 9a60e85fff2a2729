// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "apps/thinwire/replay/comparison.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::replay {

/// One rank's input of one collective, in the form of the recordings.
struct WireMessage {
  std::string op;     ///< all_to_all_single, all_gather, all_reduce
  std::string dtype;  ///< uint8: sign bits, first element in the highest bit
  std::vector<std::uint8_t> payload;
};

/// The tensor that a block belongs to, and the size of its record.
struct RecordedBlock {
  std::size_t tensor = 0;
  std::size_t bits = 0;  ///< Number of elements, including padding.
};
/// Returns the blocks of the library's own exchange.
[[nodiscard]] std::vector<RecordedBlock> blocks_of(
    std::span<const Range> tensors, const exchange::BlockLayout& layout);
/// Returns the blocks of the reference, whose `units` are some of the tensors.
[[nodiscard]] std::vector<RecordedBlock> blocks_per_unit(
    std::span<const Range> tensors, std::span<const Range> units, int world);

/// Observes compressed all-reduces and puts their messages into the order of
/// the recordings. These have four messages per compressed tensor and one per
/// exactly reduced one, tensor by tensor.
class WireRecorder final : public exchange::WireObserver {
 public:
  /// `tensors` are the tensors' ranges of the flat array; `blocks` are those of
  /// the compressed tensors.
  WireRecorder(std::vector<Range> tensors, std::vector<RecordedBlock> blocks);

  void worker_record(std::size_t block, kernels::Signs signs) override;
  void server_record(std::size_t block, kernels::Signs signs) override;
  void exact(Range range, ConstView values) override;
  void overflow_flag(std::uint8_t own) override;

  /// Returns the messages since the last call.
  std::vector<WireMessage> take();

 private:
  struct Seen {
    std::vector<std::uint8_t> worker_bits;
    std::vector<std::uint8_t> server_bits;
    std::vector<std::uint8_t> worker_scale;
    std::vector<std::uint8_t> server_scale;
    std::vector<std::uint8_t> exact;
  };

  std::vector<Range> tensors_;
  std::vector<RecordedBlock> blocks_;
  std::vector<Seen> seen_;
  std::vector<std::uint8_t> flags_;
};

/// Compares messages with a recorded list [[op, dtype, offset, bytes], ...] and
/// the bytes at these offsets. A list without offsets has no recorded content.
void compare_wire(Comparison& comparison, std::size_t step,
                  const std::vector<WireMessage>& got,
                  const nlohmann::json& want,
                  std::span<const std::uint8_t> recorded);

}  // namespace thinwire::replay
