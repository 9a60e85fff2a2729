// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/thinwire/replay/comparison.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::replay {

/// What one rank hands to one collective, in the recordings' terms.
struct WireMessage {
  std::string op;     ///< all_to_all_single, all_gather, all_reduce
  std::string dtype;  ///< uint8: sign bits, first element in the highest bit
  std::vector<std::uint8_t> payload;
};

/// Watches compressed all-reduces with a scale per unit and puts what it saw
/// into the order of the recordings: four messages per compressed tensor, one
/// per exactly reduced one, tensor by tensor.
class WireRecorder final : public exchange::WireObserver {
 public:
  /// `tensors`: every tensor's range of the flat array. `layout`: that of the
  /// compressed ones, all in one bucket.
  WireRecorder(std::vector<Range> tensors, const exchange::BlockLayout& layout);

  void worker_record(std::size_t block, kernels::Signs signs) override;
  void server_record(std::size_t block, kernels::Signs signs) override;
  void exact(Range range, ConstView values) override;
  void overflow_flag(std::uint8_t own) override;

  /// What was seen since the last call.
  std::vector<WireMessage> take();

 private:
  struct Seen {
    std::vector<std::uint8_t> worker_bits;
    std::vector<std::uint8_t> server_bits;
    std::vector<std::uint8_t> worker_scale;
    std::vector<std::uint8_t> server_scale;
    std::vector<std::uint8_t> exact;
  };
  [[nodiscard]] std::size_t tensor_of(std::size_t block) const;

  std::vector<Range> tensors_;
  const exchange::BlockLayout& layout_;
  std::vector<std::size_t> block_tensor_;
  std::vector<Seen> seen_;
  std::vector<std::uint8_t> flags_;
};

/// Compares messages with a recorded list [[op, dtype, offset, bytes], ...] and
/// the bytes it points into; a list without offsets has no recorded content.
void compare_wire(Comparison& comparison, std::size_t step,
                  const std::vector<WireMessage>& got,
                  const nlohmann::json& want,
                  std::span<const std::uint8_t> recorded);

}  // namespace thinwire::replay
