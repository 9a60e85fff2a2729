// SPDX-License-Identifier: Apache-2.0
#include "exchange/units/low_bit_units.h"

#include <utility>
#include <vector>

#include "exchange/low_bit_exchange.h"
#include "thinwire/exchange/bucket_rule.h"

namespace thinwire::exchange {

BlockLayout layout_in_buckets(std::span<const Block> blocks, std::size_t most,
                              int world_size) {
  std::vector<std::vector<Block>> buckets;
  std::size_t in_bucket = most;
  for (const Block& block : blocks) {
    if (in_bucket + block.values.size > most) {
      buckets.emplace_back();
      in_bucket = 0;
    }
    buckets.back().push_back(block);
    in_bucket += block.values.size;
  }
  return BlockLayout::of_blocks(std::move(buckets), world_size);
}

// Path of one part, which is sent, queued to the end, and completed.
class LowBitUnits::Way final : public PartWay {
 public:
  Way(LowBitUnits& owner, std::span<const std::size_t> of)
      : PartWay(of),
        owner_(owner),
        layout_(layout_in_buckets(blocks(), owner.bucket_,
                                  owner.route().comm.size())),
        exchange_(
            owner.route(), owner.pool_, layout_, owner.codec_,
            Pipeline::Options(),
            owner.residuals_.of(
                layout_, std::vector<bool>(layout_.blocks().size(), true))) {}

  void send(ConstView x, const UnitPart& part) override {
    FreshResiduals& fresh =
        owner_.accepts_steps() ? own_fresh_ : owner_.fresh_[owner_.turn()];
    exchange_.residuals.worker.write_to(fresh.worker);
    exchange_.residuals.server.write_to(fresh.server);
    exchange_.begin(
        [this, x](std::size_t b) {
          const Range at = layout_.blocks()[b].values;
          return x.subview(at.offset, at.size);
        },
        static_cast<float>(1 / part.loss_scale));
    exchange_.write_to(
        {.values = part.values, .scale = static_cast<float>(part.loss_scale)});
    exchange_.ready_all();
  }
  void advance(std::size_t /*stage*/) override { exchange_.queue_rest(); }
  bool complete() override { return exchange_.finish(); }
  void accept() override { exchange_.residuals.accept(owner_.pool_); }
  void drop() noexcept override { exchange_.drop(); }
  [[nodiscard]] double wait_seconds() const override {
    return exchange_.wait_seconds();
  }

 private:
  // Returns the blocks of the units. Block::values refers to the part's values.
  [[nodiscard]] std::vector<Block> blocks() const {
    std::vector<Block> all;
    std::size_t at = 0;
    for (const std::size_t unit : units) {
      owner_.residuals_.add_blocks(unit, at, all);
      at += owner_.residuals_.units()[unit].range.size;
    }
    return all;
  }

  LowBitUnits& owner_;
  const BlockLayout layout_;
  LowBitExchange exchange_;
  FreshResiduals own_fresh_;
};

LowBitUnits::LowBitUnits(const Route& route, ThreadPool& pool,
                         UnitResiduals& residuals, int bits, Accepts accepts)
    : PartsInFlight(route, residuals, 2, accepts),
      pool_(pool),
      residuals_(residuals),
      codec_(codec_of(bits)),
      bucket_(bucket_rule(residuals.size(), route.comm.size(), bits)) {}

std::unique_ptr<PartWay> LowBitUnits::make_way(
    std::span<const std::size_t> units) {
  return std::make_unique<Way>(*this, units);
}

std::size_t LowBitUnits::bytes_per_pass() const {
  std::size_t bytes = 0;
  for (std::size_t unit = 0; unit < residuals_.units().size(); ++unit)
    bytes += residuals_.bytes_of(unit, codec_);
  return bytes;
}

}  // namespace thinwire::exchange
