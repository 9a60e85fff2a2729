// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "thinwire/core/buffer.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Reads an array of a state in pieces that fit the cache. The array must
/// outlive this object.
class StatePieces {
 public:
  explicit StatePieces(const StateArray& array)
      : array_(array), piece_(std::min(kMost, array.size), array.dtype) {}

  /// Calls `accept` with the values of each piece of `range`, in order, until
  /// it returns false. Returns whether it has accepted all pieces.
  template <class Accept>
  [[nodiscard]] bool all_of(Range range, Accept accept) {
    for (std::size_t begin = range.offset; begin < range.end();
         begin += kMost) {
      const std::size_t size = std::min(kMost, range.end() - begin);
      const View values = piece_.view().subview(0, size);
      array_.read({begin, size}, values);
      if (!accept(ConstView(values))) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kMost = std::size_t{1} << 16;

  const StateArray& array_;
  Buffer piece_;
};

}  // namespace thinwire::optim
