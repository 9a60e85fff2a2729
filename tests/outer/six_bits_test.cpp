// SPDX-License-Identifier: Apache-2.0
// A codec is one file: one of 6 bits, which no source knows, trains in all that
// exchange few bits, with the bits of plain loops.
#include "exchange/six_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "exchange/naive_mean.h"
#include "optim/naive/drive.h"
#include "optim/naive/onebit_adam.h"
#include "optim/support.h"
#include "outer/naive_outer.h"
#include "outer/support.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/low_bit_mean.h"
#include "thinwire/exchange/low_bit_reduce_scatter.h"
#include "zero/naive_wire.h"
#include "zero/support.h"

namespace thinwire::test::six_bits {
namespace {

using Floats = std::vector<float>;

// Returns what options say about so many bits; those that take them, nothing.
std::vector<std::string> answers(int bits) {
  std::vector<std::string> all;
  const auto ask = [&](const auto& call) {
    std::string& answer = all.emplace_back();
    try {
      call();
    } catch (const Error& error) {
      answer = error.what();
    }
  };
  const std::size_t sizes[] = {7};
  const auto comm = std::move(comm::make_local_group(1).front());
  ThreadPool pool(1);
  ask([&] { exchange::LowBitMean(*comm, pool, sizes, {.bits = bits}); });
  ask([&] {
    exchange::LowBitReduceScatter(*comm, pool, 7, {}, {.bits = bits});
  });
  ask([&] { optim::FreezeOptions{.warmup_bits = bits}.validate(); });
  ask([&] { zero::ZeroOptions{.wire = {.bits_up = bits}}.validate(); });
  ask([&] { zero::ZeroOptions{.wire = {.bits_down = bits}}.validate(); });
  ask([&] {
    outer::OuterOptions{.sync_every = 1, .bits_up = bits}.validate();
  });
  ask([&] {
    outer::OuterOptions{.sync_every = 1, .bits_down = bits}.validate();
  });
  ask([&] {
    outer::OuterOptions{.sync_every = 1, .warmup_bits = bits}.validate();
  });
  return all;
}

// Adds the codec once. Returns what options said about 6 bits before.
const std::vector<std::string>& before() {
  static const std::vector<std::string> said = [] {
    std::vector<std::string> all = answers(6);
    exchange::add_codec(6, std::make_unique<SixBits>());
    return all;
  }();
  return said;
}

TEST(SixBits, AreRefusedWithoutACodec) {
  for (const std::string& said : before())
    EXPECT_NE(said.find("4 or 8"), std::string::npos) << said;
  for (const std::string& said : answers(6)) EXPECT_EQ(said, "");
  for (const std::string& said : answers(5))
    EXPECT_NE(said.find("4, 6 or 8"), std::string::npos) << said;
  EXPECT_EQ(before().size(), answers(5).size());
}

class OnRanks : public ::testing::TestWithParam<int> {
 protected:
  OnRanks() { before(); }

  [[nodiscard]] static std::vector<Floats> gradients_of(std::int64_t t) {
    return outer_loop::gradients(awkward_layout(), t, GetParam());
  }
  // Calls body(comm, rank) on each rank.
  template <class Body>
  void on_ranks(const Body& body) const {
    run_ranks("local", world, [&](comm::Communicator& comm) {
      body(comm, static_cast<std::size_t>(comm.rank()));
    });
  }

  const int world = GetParam();
  const ParameterLayout layout = awkward_layout();
  const std::size_t size = layout.size();
};
INSTANTIATE_TEST_SUITE_P(SixBits, OnRanks, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(OnRanks, TrainInTheAverageOfAHook) {
  std::vector<std::size_t> sizes;
  for (const Parameter& p : layout.parameters()) sizes.push_back(p.size);
  std::vector<std::size_t> units(sizes.size());
  std::iota(units.begin(), units.end(), std::size_t{0});
  std::vector<std::vector<Floats>> want;  // [step][rank]
  std::vector<Floats> e(static_cast<std::size_t>(world), Floats(size));
  Floats d(size);
  for (std::int64_t t = 0; t < 4; ++t) {
    want.push_back(gradients_of(t));
    for (const Parameter& p : layout.parameters())
      if (world > 1) naive_mean({p.offset, p.size}, 6, 1, want.back(), e, d);
  }
  on_ranks([&](comm::Communicator& comm, std::size_t rank) {
    ThreadPool pool(2);
    exchange::LowBitMean mean(comm, pool, sizes, {.bits = 6});
    for (std::int64_t t = 0; t < 4; ++t) {
      Floats values = gradients_of(t)[rank];
      EXPECT_TRUE(mean.average({values, units}));
      EXPECT_TRUE(same_bytes(values, want[static_cast<std::size_t>(t)][rank]));
    }
    EXPECT_TRUE(same_bytes(mean.worker_error(), e[rank]));
  });
}

TEST_P(OnRanks, TrainInTheReduceScatterOfAHook) {
  using Piece = exchange::LowBitReduceScatter::Piece;
  const auto ranks = static_cast<std::size_t>(world);
  std::vector<Piece> pieces;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t begin = size * r / ranks;
    pieces.push_back({.from = begin,
                      .residual = begin,
                      .size = size * (r + 1) / ranks - begin,
                      .owner = static_cast<int>(r)});
  }
  std::vector<Floats> want;  // of each step
  std::vector<Floats> e(ranks, Floats(size));
  for (std::int64_t t = 0; t < 4; ++t) {
    Floats& mean = want.emplace_back(size);
    const std::vector<Floats> all = gradients_of(t);
    for (const Piece& piece : pieces)
      for (std::size_t at = 0; at < piece.size; at += 1024)
        for (std::size_t r = 0; r < ranks; ++r) {
          const std::size_t begin = piece.from + at;
          const std::size_t count =
              std::min<std::size_t>(1024, piece.size - at);
          naive_send(std::span(all[r]).subspan(begin, count), 1, 6,
                     static_cast<float>(1.0 / world),
                     std::span(e[r]).subspan(begin, count),
                     std::span(mean).subspan(begin, count));
        }
    if (world == 1) mean = all.front();
  }
  on_ranks([&](comm::Communicator& comm, std::size_t rank) {
    ThreadPool pool(2);
    const std::vector<std::vector<Piece>> parts = {pieces};
    exchange::LowBitReduceScatter mean(comm, pool, size, parts, {.bits = 6});
    Floats result(pieces[rank].size);
    for (std::int64_t t = 0; t < 4; ++t) {
      EXPECT_TRUE(mean.average(0, gradients_of(t)[rank], result));
      const Floats& all = want[static_cast<std::size_t>(t)];
      EXPECT_TRUE(same_bytes(
          result, std::span(all).subspan(pieces[rank].from, result.size())));
    }
  });
}

TEST_P(OnRanks, TrainInTheWarmUpOfOnebitAdam) {
  for (const DType residuals : {DType::kFloat32, DType::kBFloat16}) {
    optim::OnebitAdamOptions options{.learning_rate = 0.02,
                                     .freeze = {.step = 6, .warmup_bits = 6}};
    options.compression.residual_dtype = residuals;
    options.compression.exchange.bucket_elements = 900;
    expect_plain_loops<naive::OnebitAdam>({world, 1}, layout, {}, options,
                                          onebit_adam);
    if (world == 1) continue;
    expect_plain_loops<naive::OnebitAdam>({world, 2}, layout, {}, options,
                                          onebit_adam);
  }
}

TEST_P(OnRanks, TrainInZeroUpAndDown) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const int stage : {1, 2}) {
      const zero::WireOptions wire{.bits_up = 6, .bits_down = 6};
      NaiveWire naive(layout, adam_rule({.learning_rate = 0.01}), world, dtype,
                      wire, normal(size, 3));
      std::vector<Floats> want;  // after each step
      for (std::int64_t t = 0; t < 4; ++t) {
        auto grads = gradients_of(t);
        for (Floats& of_rank : grads)
          for (float& g : of_rank) g = rounded_to(dtype, g);
        naive.step(grads, 1);
        want.push_back(naive.params);
      }
      on_ranks([&](comm::Communicator& comm, std::size_t rank) {
        const auto make = [&](const zero::WireOptions& of) {
          return ZeroRun(comm, layout, adam_rule({.learning_rate = 0.01}),
                         {.stage = stage,
                          .dtype = dtype,
                          .exchange = {.bucket_elements = 3000},
                          .wire = of});
        };
        ZeroRun run = make(wire);
        ZeroRun exact = make({});
        for (std::int64_t t = 0; t < 4; ++t) {
          const Floats own = gradients_of(t)[rank];
          EXPECT_TRUE(run.step(own).applied);
          EXPECT_TRUE(exact.step(own).applied);
          EXPECT_TRUE(same_bytes(
              run.values(), world == 1 ? exact.values()  // It sends nothing.
                                       : want[static_cast<std::size_t>(t)]))
              << t;
        }
      });
    }
}

TEST_P(OnRanks, TrainInTheOuterLoop) {
  const outer::OuterOptions options{.sync_every = 2,
                                    .bits_up = 6,
                                    .bits_down = 6,
                                    .warmup_steps = 3,
                                    .warmup_bits = 6};
  const auto inner = outer_loop::adam_inside(layout);
  NaiveOuter naive(world, layout, inner, options, normal(size, 3));
  std::vector<std::vector<Floats>> want;
  for (std::int64_t t = 1; t <= 10; ++t) {
    naive.step(gradients_of(t));
    want.push_back(naive.params);
  }
  on_ranks([&](comm::Communicator& comm, std::size_t rank) {
    outer::OuterLoop optimizer(comm, layout, inner, options,
                               optim::ExchangeOptions());
    Floats params = normal(size, 3);
    for (std::int64_t t = 1; t <= 10; ++t) {
      step_of(optimizer, params, t, comm.rank());
      EXPECT_TRUE(
          same_bytes(params, want[static_cast<std::size_t>(t - 1)][rank]))
          << t;
    }
  });
}

}  // namespace
}  // namespace thinwire::test::six_bits
