// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/model.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/kernels/denominator_codes.h"
#include "thinwire/optim/state.h"

namespace thinwire::lean {

/// Frozen denominators of all parameters, in 8 or 4 bits each
/// (kernels/denominator_codes.h). The blocks of the model are cells. Before
/// they are encoded, denominators are bounded like those of 1-bit Adam
/// (docs/algorithms/late-and-heavy.md).
class CodedDenominators {
 public:
  CodedDenominators(optim::LowBitModel& model, int bits);

  // ---- the freeze
  void begin();
  /// Encodes block `b`, which this rank serves. `d` holds its sqrt(v) + eps,
  /// and `participation` follows from mask and variance; elements without a
  /// finite denominator are excluded there. The function may overwrite both
  /// arrays. Several threads may encode different blocks at once. Returns the
  /// factor of each element's momentum.
  std::vector<float> encode(std::size_t b, std::span<float> d,
                            std::span<std::uint8_t> participation);
  /// Gathers the blocks of the other ranks, after this rank has encoded its own
  /// blocks. Collective.
  void gather(optim::StepMeter& step);
  /// Returns the participation of every element, from its code and the caller's
  /// mask. Empty if all elements take part.
  [[nodiscard]] std::vector<std::uint8_t> participation() const;

  // ---- steps
  /// Activates elements that had no gradient before, in ascending order.
  void admit(std::span<const std::size_t> elements);
  /// Excludes elements, in ascending order.
  void leave_out(std::span<const std::size_t> elements);
  /// Bounds gradients like optim::Denominator::guard().
  void guard(View grads, double grad_scale,
             std::span<const double> chunk_squares) const;
  /// Writes 1 / R of block `b` to `to`, or infinity for elements that take no
  /// part.
  [[nodiscard]] std::span<const float> of_block(std::size_t b,
                                                std::span<float> to) const;
  /// Returns the codes and the range of block `b`. The other fields are not
  /// set.
  [[nodiscard]] kernels::CodedUpdateArrays arrays(std::size_t b) const;
  [[nodiscard]] std::span<const optim::HeavyElement> heavy() const {
    return blocks_.heavy();
  }

  // ---- state
  void add_to(optim::State& state) const;
  /// Values of a saved state.
  struct Saved {
    Buffer codes;
    std::vector<kernels::CodeRange> ranges;
    optim::BlockDenominators blocks;
  };
  /// Throws Error(kCorruptCheckpoint) for invalid values.
  [[nodiscard]] Saved read(const StateDict& state) const;
  void restore(Saved&& saved);
  void clear();
  /// Returns checksums of codes and ranges, which must be equal on all ranks.
  [[nodiscard]] std::string checksums() const;

 private:
  // Values that a rank sends for a cell that it serves. `median` is negative if
  // no element takes part.
  struct Cell {
    kernels::CodeRange range;
    float median = -1;
    float floor = 0;
  };
  // An outlier or, with factor 0, an element that is permanently excluded.
  struct Exception {
    std::uint64_t index = 0;
    float factor = 0;
    std::uint32_t unused = 0;
  };
  /// Sets the codes of `elements`. `code_in` gives the code for each block.
  void set_codes(std::span<const std::size_t> elements,
                 const std::function<int(std::size_t block)>& code_in);
  void gather_cells(optim::StepMeter& step);
  void gather_exceptions(optim::StepMeter& step);
  void fill_dead_cells();
  [[nodiscard]] float typical(std::size_t parameter) const;
  [[nodiscard]] Buffer packed(std::span<const std::uint8_t> elements) const;
  [[nodiscard]] std::uint8_t* codes_of(std::size_t b) {
    return codes_.as<std::uint8_t>().data() + first_byte_[b];
  }
  [[nodiscard]] const std::uint8_t* codes_of(std::size_t b) const {
    return codes_.as<std::uint8_t>().data() + first_byte_[b];
  }

  optim::LowBitModel& model_;
  const int bits_;
  std::vector<std::size_t> first_byte_;  // per block, then the end
  Buffer codes_;
  std::vector<kernels::CodeRange> ranges_;  // per block
  optim::BlockDenominators blocks_;
  std::mutex mutex_;
  std::vector<Exception> exceptions_;  // after gather(), all ranks'
};

}  // namespace thinwire::lean
