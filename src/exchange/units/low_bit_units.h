// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "exchange/codec/codec.h"
#include "exchange/units/parts_in_flight.h"
#include "exchange/units/unit_residuals.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::exchange {

/// Memory of the new residuals of a part in flight.
struct FreshResiduals {
  Buffer worker{0, DType::kFloat32};
  Buffer server{0, DType::kFloat32};
};

/// Returns the layout of these blocks, in this order, in buckets of at most
/// `most` elements.
[[nodiscard]] BlockLayout layout_in_buckets(std::span<const Block> blocks,
                                            std::size_t most, int world_size);

/// The low-bit average of units, which LowBitMean uses.
class LowBitUnits final : public PartsInFlight {
 public:
  /// All arguments except `bits` must outlive this object.
  LowBitUnits(const Route& route, ThreadPool& pool, UnitResiduals& residuals,
              int bits, Accepts accepts);

  [[nodiscard]] std::size_t bytes_per_pass() const;

 private:
  class Way;

  [[nodiscard]] std::unique_ptr<PartWay> make_way(
      std::span<const std::size_t> units) override;

  ThreadPool& pool_;
  UnitResiduals& residuals_;
  const ValueCodec& codec_;
  const std::size_t bucket_;
  std::array<FreshResiduals, 3> fresh_;  // by turn
};

}  // namespace thinwire::exchange
