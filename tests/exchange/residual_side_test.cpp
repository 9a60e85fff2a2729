// SPDX-License-Identifier: Apache-2.0
// Residuals of runs that count, and of runs that do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "exchange/codec/codec.h"
#include "exchange/residuals.h"
#include "exchange/support.h"
#include "support/values.h"

namespace thinwire::exchange::residual_side_test {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::uint8_t>;

// (dtype, whether they are those of a larger array)
class Sides : public ::testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  static constexpr std::size_t kBefore = 50;  // elements of the larger array

  ResidualSide make(bool can_drop = true) {
    if (!is_part || !can_drop) return {layout, 1, 2, dtype, can_drop};
    whole = Buffer(layout.residual_size() + 2 * kBefore, dtype);
    std::vector<Range> at;
    for (const Block& block : layout.blocks())
      at.push_back({block.residual.offset + kBefore,
                    block.server == 1 ? block.residual.size : 0});
    ResidualSide side(whole.view(), at);
    side.write_to(fresh);
    return side;
  }
  // Calls body(b) for the blocks of the side.
  template <class Body>
  void each(const Body& body) const {
    for (std::size_t b = 0; b < layout.blocks().size(); ++b)
      if (layout.blocks()[b].server == 1) body(b);
  }
  [[nodiscard]] Floats values(std::size_t b, std::uint32_t seed) const {
    return test::normal(layout.blocks()[b].values.size,
                        100 * seed + static_cast<std::uint32_t>(b));
  }
  // Encodes all blocks, as a run does.
  void send(const ResidualSide& side, std::uint32_t seed) const {
    each([&](std::size_t b) {
      const Floats x = values(b, seed);
      kernels::QuantizedSum sum = side.sum(b);
      sum.values = x;
      Bytes record(codec_of(4).record_bytes(x.size()));
      codec_of(4).encode(sum, record.data());
    });
  }
  // Returns the residuals, block by block. Expects that others are 0.
  [[nodiscard]] Floats of(const ResidualSide& side) const {
    Floats all;
    each([&](std::size_t b) {
      const Floats own = test::floats_of(side.sum(b).residual);
      all.insert(all.end(), own.begin(), own.end());
    });
    EXPECT_EQ(std::ranges::count(all, 0.0f) +
                  std::ssize(test::floats_of(side.values())),
              std::ranges::count(test::floats_of(side.values()), 0.0f) +
                  std::ssize(all));
    return all;
  }
  // Returns what these runs leave if all of them count.
  Floats after(std::initializer_list<std::uint32_t> seeds) {
    const ResidualSide plain = make(/*can_drop=*/false);
    for (const std::uint32_t seed : seeds) send(plain, seed);
    return of(plain);
  }

  const DType dtype = std::get<0>(GetParam());
  const bool is_part = std::get<1>(GetParam());
  const BlockLayout layout{
      test::awkward_units(),
      {.world_size = 3, .bucket_elements = 1500, .block_elements = 100}};
  Buffer whole, fresh;
};
INSTANTIATE_TEST_SUITE_P(Residuals, Sides,
                         ::testing::Combine(::testing::Values(DType::kFloat32,
                                                              DType::kBFloat16),
                                            ::testing::Bool()));

TEST_P(Sides, ARunCountsAfterItIsAccepted) {
  ResidualSide side = make();
  send(side, 1);
  EXPECT_EQ(of(side), after({}));
  EXPECT_NE(after({1}), after({}));
  send(side, 1);  // as one that begins anew
  side.accept();
  EXPECT_EQ(of(side), after({1}));
  send(side, 2);
  side.accept();
  EXPECT_EQ(of(side), after({1, 2}));
}

TEST_P(Sides, ADroppedRunChangesNothing) {
  ResidualSide side = make();
  send(side, 1);
  side.accept();
  send(side, 2);
  EXPECT_FALSE(side.drop());
  EXPECT_EQ(of(side), after({1}));
  send(side, 3);
  side.accept();
  EXPECT_EQ(of(side), after({1, 3}));
}

TEST_P(Sides, WithoutFreshMemoryRunsCountAtOnceAndADropLeavesZeros) {
  ResidualSide side = make(/*can_drop=*/false);
  send(side, 1);
  EXPECT_EQ(of(side), after({1}));
  side.accept();
  side.save_before();
  send(side, 2);
  EXPECT_EQ(of(side), after({1, 2}));
  EXPECT_TRUE(side.drop());
  EXPECT_EQ(of(side), after({}));
}

TEST_P(Sides, KeptErrorsCountAtOnce) {
  ResidualSide side = make();
  Floats want;
  each([&](std::size_t b) {
    const Buffer error = test::converted(values(b, 5), dtype);
    side.keep(b, error.view());
    const Floats kept = test::floats_of(error.view());
    want.insert(want.end(), kept.begin(), kept.end());
    EXPECT_EQ(test::floats_of(side.sum(b).residual), kept);
  });
  EXPECT_FALSE(side.drop());
  EXPECT_EQ(of(side), want);
}

TEST_P(Sides, ADropRestoresTheSavedValues) {
  if (is_part) return;
  ResidualSide side = make();
  send(side, 1);
  side.accept();
  side.save_before();
  send(side, 2);
  send(side, 3);
  EXPECT_EQ(of(side), after({1, 2, 3}));
  EXPECT_FALSE(side.drop());
  EXPECT_EQ(of(side), after({1}));
  side.save_before();
  send(side, 2);
  side.accept();
  for (const bool forgets : {false, true}) {
    if (forgets) side.save_before();
    if (forgets) side.forget_before();
    send(side, 3);
    EXPECT_EQ(of(side), after({1, 2}));
    EXPECT_FALSE(side.drop());
    EXPECT_EQ(of(side), after({1, 2}));
  }
}

}  // namespace
}  // namespace thinwire::exchange::residual_side_test
