// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/pipeline/pipeline.h"
#include "exchange/residuals.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Units (parameters) that are adjacent in a flat array, with the residuals of
/// both directions. Each unit is cut into blocks of at most 1024 elements.
class UnitResiduals {
 public:
  /// A block of the flat array.
  struct Cut {
    Range range;
    std::size_t place;   ///< Place of its server.
    std::size_t served;  ///< Its first element in server(), if served here.

    [[nodiscard]] Range in_server() const { return {served, range.size}; }
  };
  struct Unit {
    Range range;
    Range cuts;
  };

  /// `hosts_ranks` gives for each unit the index of the rank in each host that
  /// encodes it. If empty, the rank at place k mod W serves cut k.
  UnitResiduals(const Route& route, std::span<const std::size_t> sizes,
                DType dtype, std::span<const std::size_t> hosts_ranks = {});

  [[nodiscard]] std::span<const Unit> units() const noexcept { return units_; }
  [[nodiscard]] std::span<const Cut> cuts_of(std::size_t unit) const {
    return std::span(cuts_).subspan(units_[unit].cuts.offset,
                                    units_[unit].cuts.size);
  }
  [[nodiscard]] const Places& places() const noexcept { return places_; }
  [[nodiscard]] bool encodes(std::size_t place) const {
    return places_.first <= place && place < places_.end();
  }
  [[nodiscard]] bool serves(const Cut& cut) const {
    return cut.place == places_.own;
  }
  /// Returns the residuals of those blocks of a layout that `is_cut` marks.
  /// Block::residual of such a block begins at a cut. Other blocks have no
  /// residual.
  [[nodiscard]] Residuals of(const BlockLayout& layout,
                             const std::vector<bool>& is_cut);

  [[nodiscard]] std::size_t size() const noexcept { return worker_.size(); }
  [[nodiscard]] View worker() { return worker_.view(); }
  [[nodiscard]] View server() { return server_.view(); }
  /// Returns a copy of the server's residual for all elements, with 0 for those
  /// that another rank serves.
  [[nodiscard]] Buffer server_error() const;
  void load(ConstView worker, ConstView server);
  /// Return the elements that this rank encodes and those that it serves, as
  /// sorted ranges.
  [[nodiscard]] std::vector<Range> encoded() const;
  [[nodiscard]] std::vector<Range> served() const;
  /// Adds the blocks of a unit's cuts. The unit's values begin at `at`.
  void add_blocks(std::size_t unit, std::size_t at,
                  std::vector<Block>& blocks) const;
  /// Returns the bytes that this rank sends in both directions for a block at
  /// `place`.
  [[nodiscard]] std::size_t bytes_at(std::size_t place, std::size_t elements,
                                     const Codec& codec) const;
  /// Returns the bytes that this rank sends in both directions for a unit's
  /// cuts.
  [[nodiscard]] std::size_t bytes_of(std::size_t unit,
                                     const Codec& codec) const;

 private:
  const Places places_;
  std::vector<Cut> cuts_;
  std::vector<Unit> units_;
  Buffer worker_;
  Buffer server_;
};

}  // namespace thinwire::exchange
