// SPDX-License-Identifier: Apache-2.0
// States saved and loaded, read and set in full.
#include <gtest/gtest.h>

#include <vector>

#include "optim/states.h"
#include "support/errors.h"
#include "support/sanitizers.h"
#include "zero/support.h"

namespace thinwire::zero::state_test {
namespace {

using test::expect_error;
using test::train_with_overflows;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

constexpr auto kCorrupt = ErrorCode::kCorruptCheckpoint;

ZeroOptions scaling(int stage, DType dtype) {
  ZeroOptions options = unscaled(stage, dtype);
  options.loss_scale = {.initial_scale = 64, .window = 2, .hysteresis = 2};
  options.exchange.max_grad_norm = 0.5;
  return options;
}

// Exact, and in few bits with each treatment of residuals.
std::vector<WireOptions> wires() {
  std::vector<WireOptions> all(1);
  for (const AfterSkip after : {AfterSkip::kKeep, AfterSkip::kClear})
    all.push_back({.bits_up = 4,
                   .bits_down = 4,
                   .residual_dtype = DType::kFloat32,
                   .after_skip = after});
  return all;
}

void expect_same_bits(comm::Communicator& comm, const ZeroOptions& options) {
  const auto rule = test::adam_rule({.weight_decay = 0.1});
  ZeroRun run(comm, two_groups(), rule, options);
  train_with_overflows(comm, run, 0, 4);
  run.optimizer->groups().set_learning_rate(1, 0.5);
  const StateDict state = copy_of(run.optimizer->state());
  ZeroRun other(comm, two_groups(), rule, options);
  train_with_overflows(comm, other, 7, 8);  // what is loaded replaces all of it
  // Unless replicas or masters have them.
  if (options.wire.is_exact() ? options.dtype == DType::kFloat32
                              : comm.size() == 1)
    kernels::convert(run.params.view(), other.params.view());
  other.optimizer->load_state_dict(state);
  EXPECT_TRUE(test::same_bytes(other.params.view(), run.params.view()));
  EXPECT_EQ(other.optimizer->progress().steps, run.optimizer->progress().steps);
  EXPECT_EQ(other.optimizer->progress().skipped, 1);
  EXPECT_EQ(other.optimizer->loss_scale(), run.optimizer->loss_scale());
  EXPECT_EQ(other.optimizer->groups().learning_rate(1), 0.5);
  train_with_overflows(comm, run, 4, 9);
  train_with_overflows(comm, other, 4, 9);
  EXPECT_TRUE(test::same_bytes(other.params.view(), run.params.view()));
  EXPECT_TRUE(test::same_state(copy_of(other.optimizer->state()),
                               copy_of(run.optimizer->state())));
}

TEST(ZeroState, AContinuedRunHasTheSameBits) {
  for (const int world : test::fewer_if_sanitized<int>({2, 3, 1}, 2))
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        for (const int stage : {1, 2})
          for (const WireOptions& wire : wires()) {
            SCOPED_TRACE(testing::Message()
                         << "stage " << stage << ", " << wire.bits_up
                         << " bits, " << static_cast<int>(wire.after_skip));
            ZeroOptions options = scaling(stage, dtype);
            options.wire = wire;
            expect_same_bits(comm, options);
          }
      });
}

// A state says who owns what, not how gradients came there.
TEST(ZeroState, OneStageLoadsWhatAnotherHasSaved) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    const DType dtype = DType::kFloat16;
    ZeroRun run(comm, two_groups(), test::adam_rule(), scaling(1, dtype));
    train_with_overflows(comm, run, 0, 2);
    const StateDict state = copy_of(run.optimizer->state());
    const auto grads = test::normal(run.layout.size(), 77);
    run.step(grads);
    for (const int stage : {1, 2}) {
      ZeroRun other(comm, two_groups(), test::adam_rule(),
                    scaling(stage, dtype));
      other.optimizer->load_state_dict(state);
      other.step(grads);
      EXPECT_EQ(other.values(), run.values()) << "stage " << stage;
    }
  });
}

// A run that is not to change where a state is refused, and one that it takes.
struct Refusing {
  Refusing(comm::Communicator& c, int stage)
      : comm(c),
        run(c, two_groups(), test::adam_rule(),
            scaling(stage, DType::kFloat16)) {
    train_with_overflows(c, run, 0, 2);
    good = copy_of(run.optimizer->state());
    train_with_overflows(c, run, 3, 5);
  }
  void refuse(std::initializer_list<std::string_view> parts,
              const StateDict& state) {
    const StateDict before = copy_of(run.optimizer->state());
    const auto values = run.values();
    expect_error(kCorrupt, parts,
                 [&] { run.optimizer->load_state_dict(state); });
    EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), before));
    EXPECT_EQ(run.values(), values);
  }
  // Rank 1 alone has one that does not fit.
  void refuse_on_one(const StateDict& bad, std::string_view own) {
    const bool is_bad = comm.rank() == 1;
    refuse({is_bad ? own : "rank 1 gave up: ", own}, is_bad ? bad : good);
  }
  ~Refusing() {
    run.optimizer->load_state_dict(good);
    EXPECT_TRUE(test::same_state(copy_of(run.optimizer->state()), good));
  }

  comm::Communicator& comm;
  ZeroRun run;
  StateDict good;
};

TEST(ZeroState, UnfitStatesAreRefusedBeforeAnythingChanges) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      Refusing it(comm, stage);
      for (const auto& [name, value] : it.good.arrays()) {
        it.refuse({name}, test::without(it.good, name));
        StateDict shorter = test::without(it.good, name);
        shorter.put(name, ConstView(value.view()).subview(1, value.size() - 1));
        it.refuse({name}, shorter);
        StateDict other_type = test::without(it.good, name);
        other_type.put(name, Buffer(value.size(), DType::kUInt8).view());
        it.refuse({name}, other_type);
      }
      for (const auto& [name, value] : it.good.scalars())
        it.refuse({name}, test::without(it.good, name));
      StateDict other = test::without(it.good, "");
      other.put_integer("rank", 1 - comm.rank());
      it.refuse({"rank"}, other);
      other.put_integer("rank", comm.rank());
      other.put_text("optimizer", "lamb");
      it.refuse({"optimizer", "lamb", "adam"}, other);
    }
  });
}

// Each of the states fits on the other rank alone, or on none.
TEST(ZeroState, AStateThatDoesNotFitOneRankIsRefusedOnAll) {
  test::run_ranks("local", 3, [](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      Refusing it(comm, stage);
      StateDict of_rank_0 = test::without(it.good, "");
      of_rank_0.put_integer("rank", 0);
      it.refuse_on_one(of_rank_0, "the state is of rank 0, this is rank 1");
      for (const auto& [name, value] : it.good.arrays())
        it.refuse_on_one(test::without(it.good, name), name);
    }
  });
}

TEST(ZeroState, StatesOfOtherShardsAreRefused) {
  const ZeroOptions options = scaling(2, DType::kBFloat16);
  StateDict alone, of_two;
  const auto save = [&](int world, StateDict& state) {
    test::run_ranks("local", world, [&](comm::Communicator& comm) {
      const ZeroRun run(comm, two_groups(), test::adam_rule(), options);
      if (comm.rank() == 0) state = copy_of(run.optimizer->state());
    });
  };
  save(1, alone);
  save(2, of_two);
  test::run_ranks("local", 1, [&](comm::Communicator& comm) {
    const auto refused = [&](const ParameterLayout& layout,
                             const ZeroOptions& other, const StateDict& state,
                             std::string_view part) {
      ZeroRun run(comm, layout, test::adam_rule(), other);
      const auto before = run.masters();
      expect_error(kCorrupt, {part},
                   [&] { run.optimizer->load_state_dict(state); });
      EXPECT_EQ(run.masters(), before);
    };
    refused(two_groups(), options, of_two, "shards");
    ZeroOptions other_buckets = options;
    other_buckets.exchange.bucket_elements = 4096;
    refused(two_groups(), other_buckets, alone, "shards");
    refused(ParameterLayout::of({{"a", {7101}}}), options, alone, "layout");
    ZeroOptions scales = options;
    scales.dtype = DType::kFloat16;
    refused(two_groups(), scales, alone, "loss_scale");
  });
}

}  // namespace
}  // namespace thinwire::zero::state_test
