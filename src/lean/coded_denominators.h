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

/// The frozen denominators of all parameters in 8 or 4 bits each
/// (kernels/denominator_codes.h), cell by cell: blocks of the model. What is
/// done to them before they are encoded is what 1-bit Adam does
/// (docs/algorithms/late-and-heavy.md).
class CodedDenominators {
 public:
  CodedDenominators(optim::LowBitModel& model, int bits);

  // ---- the freeze
  void begin();
  /// `d` holds sqrt(v) + eps of block `b`, which this rank serves, and
  /// `participation` who takes part by mask and variance; what has no finite
  /// denominator is taken out there. Neither is used afterwards. Several
  /// threads may encode different blocks at once. Returns what the momentum of
  /// each element is to be multiplied by.
  std::vector<float> encode(std::size_t b, std::span<float> d,
                            std::span<std::uint8_t> participation);
  /// Collective, after all of this rank's blocks: those of the others.
  void gather(optim::StepMeter& step);
  /// Of every element, by its code and the caller's mask; empty: all take part.
  [[nodiscard]] std::vector<std::uint8_t> participation() const;

  // ---- steps
  /// Elements, ascending, that were late and take part from now on.
  void admit(std::span<const std::size_t> elements);
  /// Elements, ascending, that take part no more.
  void leave_out(std::span<const std::size_t> elements);
  /// As optim::Denominator::guard().
  void guard(View grads, double grad_scale,
             std::span<const double> chunk_squares) const;
  /// 1 / R of block `b`, written to `to`; infinite where an element takes no
  /// part.
  [[nodiscard]] std::span<const float> of_block(std::size_t b,
                                                std::span<float> to) const;
  /// Codes and range of block `b`; other fields are not set.
  [[nodiscard]] kernels::CodedUpdateArrays arrays(std::size_t b) const;
  [[nodiscard]] std::span<const optim::HeavyElement> heavy() const {
    return blocks_.heavy();
  }

  // ---- state: coded_denominators_state.cpp
  void add_to(optim::State& state) const;
  /// Takes them out of a state; throws Error(kCorruptCheckpoint).
  struct Saved {
    Buffer codes;
    std::vector<kernels::CodeRange> ranges;
    optim::BlockDenominators blocks;
  };
  [[nodiscard]] Saved read(const StateDict& state) const;
  void restore(Saved&& saved);
  void clear();
  /// Of codes and ranges, which must be the same on all ranks.
  [[nodiscard]] std::string checksums() const;

 private:
  // What a rank tells of a cell that it serves; without a live element
  // `median` is below 0.
  struct Cell {
    kernels::CodeRange range;
    float median = -1;
    float floor = 0;
  };
  // An element that is heavy, or, with factor 0, out for ever.
  struct Exception {
    std::uint64_t index = 0;
    float factor = 0;
    std::uint32_t unused = 0;
  };
  /// A code for each element, by its block.
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
  std::vector<std::size_t> first_byte_;  // of each block's codes, and the end
  Buffer codes_;
  std::vector<kernels::CodeRange> ranges_;  // per block
  optim::BlockDenominators blocks_;
  std::mutex mutex_;
  std::vector<Exception> exceptions_;  // in encode() this rank's, then all
};

}  // namespace thinwire::lean
