// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/low_bit_reduce_scatter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "exchange/naive_mean.h"
#include "exchange/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::exchange::low_bit_reduce_scatter_test {
namespace {

using Values = std::vector<float>;
using Piece = LowBitReduceScatter::Piece;

constexpr double kLossScale = 512;
constexpr float kUntouched = 77;

// (rows, elements of a row) of the units of each part, one of several blocks.
struct Unit {
  std::size_t rows;
  std::size_t width;
};
const std::vector<std::vector<Unit>> kParts = {{{5, 1}, {3, 1025}, {1, 7}},
                                               {{17, 200}}};

// Parts as FSDP2 lays them out: rows are padded to a multiple of the ranks, and
// rank r's rows of all units lie at r * row.
struct Sharded {
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::size_t> sizes;  // of each part's gradient, with padding
  std::size_t elements = 0;        // without it
};

Sharded sharded(int world) {
  const auto ranks = static_cast<std::size_t>(world);
  Sharded all;
  for (const auto& units : kParts) {
    std::size_t row = 0;
    for (const Unit& unit : units)
      row += (unit.rows + ranks - 1) / ranks * unit.width;
    std::vector<Piece> pieces;
    std::size_t to = 0;
    for (const Unit& unit : units) {
      const std::size_t rows = (unit.rows + ranks - 1) / ranks;
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::size_t begin = std::min(unit.rows, r * rows);
        const std::size_t end = std::min(unit.rows, begin + rows);
        pieces.push_back({.from = r * row + to,
                          .to = to,
                          .residual = all.elements + begin * unit.width,
                          .size = (end - begin) * unit.width,
                          .owner = static_cast<int>(r)});
      }
      to += rows * unit.width;
      all.elements += unit.rows * unit.width;
    }
    all.pieces.push_back(pieces);
    all.sizes.push_back(row * ranks);
  }
  return all;
}

Values gradient(int rank, std::size_t pass, std::size_t size) {
  return test::layered_values(size, static_cast<std::uint32_t>(10 * pass) +
                                        static_cast<std::uint32_t>(rank));
}

// Plain loops over one block of one rank; adds what was sent to `sum`.
void naive_send(const Values& x, const Piece& piece, std::size_t begin,
                int bits, float inverse, Values& e, Values& sum) {
  const std::size_t size = std::min<std::size_t>(1024, piece.size - begin);
  test::naive_send(std::span(x).subspan(piece.from + begin, size),
                   static_cast<float>(1 / kLossScale), bits, inverse,
                   std::span(e).subspan(piece.residual + begin, size),
                   std::span(sum).subspan(piece.to + begin, size));
}

// (ranks, bits)
class ReduceScatter : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  const int world = std::get<0>(GetParam());
  const int bits = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, ReduceScatter,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8),
                                            ::testing::Values(4, 8)));

TEST_P(ReduceScatter, EqualsPlainLoops) {
  const Sharded all = sharded(world);
  const auto inverse = static_cast<float>(1.0 / world);
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(2);
    LowBitReduceScatter exchange(comm, pool, all.elements, all.pieces,
                                 {.bits = bits});
    std::vector<Values> e(static_cast<std::size_t>(world),
                          Values(all.elements));
    for (std::size_t pass = 0; pass < 6; ++pass) {
      const std::size_t part = pass % 2;
      const std::size_t size = all.sizes[part];
      const std::size_t row = size / static_cast<std::size_t>(world);
      Values want(row);
      Values result(row, kUntouched);
      for (int r = 0; r < world; ++r) {
        const Values x = gradient(r, pass, size);
        for (const Piece& piece : all.pieces[part])
          for (std::size_t at = 0; at < piece.size; at += 1024) {
            Values elsewhere(row);
            naive_send(x, piece, at, bits, inverse,
                       e[static_cast<std::size_t>(r)],
                       piece.owner == comm.rank() ? want : elsewhere);
          }
      }
      const Values own = gradient(comm.rank(), pass, size);
      EXPECT_TRUE(exchange.average(part, own, result, kLossScale));
      std::vector<bool> is_own(row);
      for (const Piece& piece : all.pieces[part])
        for (std::size_t i = 0; i < piece.size && piece.owner == comm.rank();
             ++i)
          is_own[piece.to + i] = true;
      for (std::size_t i = 0; i < row; ++i)
        ASSERT_EQ(result[i], is_own[i]
                                 ? want[i] * static_cast<float>(kLossScale)
                                 : kUntouched)
            << pass << " " << i;
    }
    EXPECT_EQ(test::floats_of(exchange.error()),
              e[static_cast<std::size_t>(comm.rank())]);
  });
}

TEST_P(ReduceScatter, IsNaNAndKeepsTheResidualIfABlockIsNotFinite) {
  const Sharded all = sharded(world);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::infinity()})
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      ThreadPool pool(1);
      LowBitReduceScatter exchange(comm, pool, all.elements, all.pieces,
                                   {.bits = bits});
      Values result(all.sizes[0] / static_cast<std::size_t>(world));
      Values x = gradient(comm.rank(), 0, all.sizes[0]);
      EXPECT_TRUE(exchange.average(0, x, result));
      const Values before = test::floats_of(exchange.error());
      // In the block of the second unit that rank 0 gets first.
      const auto hit = *std::ranges::find_if(all.pieces[0], [](const Piece& p) {
        return p.residual == 5 && p.size > 0;
      });
      ASSERT_EQ(hit.owner, 0);
      if (comm.rank() == 1) x[hit.from] = bad;
      EXPECT_EQ(exchange.average(0, x, result), comm.rank() != 0);
      const Values after = test::floats_of(exchange.error());
      for (std::size_t i = 0; i < std::min<std::size_t>(1024, hit.size); ++i) {
        EXPECT_EQ(std::isnan(result[hit.to + i]), comm.rank() == 0);
        if (comm.rank() == 1) {
          EXPECT_EQ(after[hit.residual + i], before[hit.residual + i]);
        }
      }
      for (const float value : after) EXPECT_TRUE(std::isfinite(value));
    });
}

TEST_P(ReduceScatter, SendsTheBytesThatItAnnounces) {
  const Sharded all = sharded(world);
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitReduceScatter exchange(comm, pool, all.elements, all.pieces,
                                 {.bits = bits});
    const std::uint64_t before = comm.counters().bytes_sent;
    for (std::size_t part = 0; part < kParts.size(); ++part) {
      const Values x = gradient(comm.rank(), part, all.sizes[part]);
      Values result(x.size() / static_cast<std::size_t>(world));
      EXPECT_TRUE(exchange.average(part, x, result));
    }
    EXPECT_EQ(comm.counters().bytes_sent - before, exchange.bytes_per_pass());
  });
}

// Each value is a multiple of its block's step.
TEST_P(ReduceScatter, TakesBFloat16) {
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<std::vector<Piece>> parts = {{{0, 0, 0, 7, 1}}};
    LowBitReduceScatter exchange(
        comm, pool, 7, parts,
        {.bits = bits, .residual_dtype = DType::kBFloat16});
    const auto top = static_cast<float>((1 << (bits - 1)) - 1);
    std::vector<BFloat16> x(7, to_bfloat16(top));
    x[3] = to_bfloat16(-3);
    std::vector<BFloat16> result(7);
    EXPECT_TRUE(exchange.average(0, x, result, 4));
    if (comm.rank() == 1) {
      for (std::size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(to_float(result[i]), to_float(x[i]), 1e-5) << i;
    }
  });
}

TEST(ReduceScatterOfParts, OfOneRankIsItsGradient) {
  const Sharded all = sharded(1);
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitReduceScatter exchange(comm, pool, all.elements, all.pieces, {});
    const Values x = gradient(0, 0, all.sizes[0]);
    Values result(x.size());
    EXPECT_TRUE(exchange.average(0, x, result));
    EXPECT_EQ(result, x);
    EXPECT_EQ(exchange.bytes_per_pass(), 0u);
  });
}

// With a residual, a code may lie above the largest value of fp16.
TEST(ReduceScatterOfParts, SaturatesFiniteGradientsOf16Bits) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    const std::vector<std::vector<Piece>> pieces = {
        {{.from = 0, .to = 0, .residual = 0, .size = 1024, .owner = 0}}};
    LowBitReduceScatter exchange(comm, pool, 1024, pieces, {.bits = 4});
    for (int pass = 0; pass < 8; ++pass) {
      std::vector<Half> values(1024, to_half(65504.0f));
      for (std::size_t i = 1; pass % 2 == 0 && i < values.size(); i += 3)
        values[i] = to_half(60000.0f);
      std::vector<Half> result(1024);
      EXPECT_TRUE(exchange.average(0, values, result));
      for (const Half value : result) {
        ASSERT_TRUE(std::isfinite(to_float(value)));
        ASSERT_GE(to_float(value), comm.rank() == 0 ? 40000.0f : 0.0f);
      }
    }
  });
}

TEST(ReduceScatterOfParts, RefusesUnfitArguments) {
  const Sharded all = sharded(2);
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    ThreadPool pool(1);
    LowBitReduceScatter exchange(comm, pool, all.elements, all.pieces, {});
    const auto refused = [&](const char* name, std::size_t part, Values x,
                             std::size_t result, double scale) {
      Values values(result);
      test::expect_invalid({name}, [&] {
        static_cast<void>(exchange.average(part, x, values, scale));
      });
    };
    const std::size_t size = all.sizes[1];
    refused("part", 2, Values(size), size, 1);
    refused("gradient", 1, Values(3), size, 1);
    refused("result", 1, Values(size), 3, 1);
    for (const double scale : {0.0, 1e-300, 0x1p128})
      refused("loss_scale must be in [2^-126, 2^127]", 1, Values(size), size,
              scale);
    test::expect_error(ErrorCode::kCorruptCheckpoint, {"residual"},
                       [&] { exchange.load_error(Values(3)); });
    const auto not_made = [&](const char* name, Piece piece, int bits) {
      const std::vector<std::vector<Piece>> parts = {{piece}};
      test::expect_invalid({name}, [&] {
        const LowBitReduceScatter other(comm, pool, 10, parts, {.bits = bits});
      });
    };
    not_made("bits", {0, 0, 0, 1, 0}, 1);
    not_made("Piece.owner", {0, 0, 0, 1, 2}, 8);
    not_made("Piece.residual", {0, 0, 5, 6, 0}, 8);
  });
}

}  // namespace
}  // namespace thinwire::exchange::low_bit_reduce_scatter_test
