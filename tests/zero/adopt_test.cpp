// SPDX-License-Identifier: Apache-2.0
// Sharded states adopted by other numbers of ranks, by other shards, and by
// optimizers that share out nothing.
#include <gtest/gtest.h>

#include <set>

#include "optim/other_ranks.h"
#include "optim/states.h"
#include "support/errors.h"
#include "zero/support.h"

namespace thinwire::zero::adopt_test {
namespace {

using test::Saved;
using test::two_groups;
using test::unscaled;
using test::ZeroRun;

ZeroOptions scaling(int stage, DType dtype) {
  ZeroOptions options = unscaled(stage, dtype);
  options.loss_scale = {.initial_scale = 64, .window = 2, .hysteresis = 2};
  return options;
}

// The same on all ranks, so that means and parameters do not depend on how
// many there are.
std::vector<float> gradient(std::size_t size, unsigned step) {
  return test::normal(size, 100 + step);
}

// States of all ranks, and the fp32 parameters that they are of.
struct Checkpoint {
  std::vector<Saved> states;
  std::vector<float> params;
};

Checkpoint saved_by(int world, const MakeRule& rule, int stage, DType dtype) {
  Checkpoint checkpoint{std::vector<Saved>(static_cast<std::size_t>(world)),
                        {}};
  test::run_ranks("local", world, [&](comm::Communicator& comm) {
    ZeroRun run(comm, two_groups(), rule, scaling(stage, dtype));
    for (unsigned t = 0; t < 3; ++t) run.step(gradient(run.layout.size(), t));
    checkpoint.states[static_cast<std::size_t>(comm.rank())] =
        test::save(*run.optimizer);
    const auto masters = run.masters();
    if (comm.rank() == 0) checkpoint.params = masters;
  });
  return checkpoint;
}

// Loads states, and parameters if no masters are kept.
void load(comm::Communicator& comm, optim::Optimizer& optimizer, View params,
          const Checkpoint& from) {
  StateDict state = test::OtherRanks(from.states, comm.rank(), comm.size())
                        .state_for(optimizer.state());
  const optim::State own = optimizer.state();
  const optim::StateArray* const masters = own.find("masters");
  if (masters != nullptr && !state.has_array("masters")) {
    std::vector<float> values;
    for (const Range& range : masters->ranges)
      values.insert(
          values.end(),
          from.params.begin() + static_cast<std::ptrdiff_t>(range.offset),
          from.params.begin() + static_cast<std::ptrdiff_t>(range.end()));
    state.put("masters", values);
  }
  optimizer.adopt(std::move(state))();
  kernels::convert(from.params, params);
}

// Without shards, for as many steps as the others take.
std::vector<float> whole(comm::Communicator& comm, const MakeRule& rule,
                         DType dtype, const Checkpoint& from, unsigned steps) {
  const ParameterLayout layout = two_groups();
  const std::vector<float> zeros(layout.size());
  const test::Unsharded run(comm, layout, rule, dtype, zeros,
                            scaling(1, dtype).loss_scale);
  Buffer params(layout.size(), dtype);
  load(comm, *run.optimizer, params.view(), from);
  for (unsigned t = 0; t < steps; ++t) {
    auto grads = gradient(layout.size(), 3 + t);
    for (float& g : grads) g *= static_cast<float>(run.loss_scale());
    Buffer own = test::rounded(grads, dtype);
    (void)run.optimizer->step(params.view(), own.view());
  }
  return test::floats_of(params.view());
}

TEST(ZeroAdopt, EveryKindOfSharingContinuesAlike) {
  for (const MakeRule& rule :
       {test::adam_rule({.learning_rate = 0.01, .weight_decay = 0.1}),
        test::lamb_rule({.learning_rate = 0.01})})
    for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
      const Checkpoint from = saved_by(3, rule, 2, dtype);
      for (const int world : {1, 2, 3})
        test::run_ranks("local", world, [&](comm::Communicator& comm) {
          const auto expected = whole(comm, rule, dtype, from, 3);
          for (const int stage : {1, 2})
            for (const std::size_t bucket : {2048, 100'000}) {
              ZeroOptions options = scaling(stage, dtype);
              options.exchange.bucket_elements = bucket;
              ZeroRun run(comm, two_groups(), rule, options);
              load(comm, *run.optimizer, run.params.view(), from);
              EXPECT_EQ(run.masters(), from.params) << "stage " << stage;
              for (unsigned t = 0; t < 3; ++t)
                run.step(gradient(run.layout.size(), 3 + t));
              EXPECT_EQ(run.values(), expected)
                  << "stage " << stage << ", " << world;
            }
        });
    }
}

TEST(ZeroAdopt, LoadsAndReturnsWholeStates) {
  const MakeRule rule = test::adam_rule({.learning_rate = 0.01});
  for (const int stage : {1, 2}) {
    const Checkpoint from = saved_by(2, rule, stage, DType::kFloat32);
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      const ParameterLayout layout = two_groups();
      optim::DataParallel plain(comm, rule(layout));
      Buffer params(layout.size(), DType::kFloat32);
      load(comm, plain, params.view(), from);
      // Through a whole state and back into shards.
      Checkpoint back{std::vector<Saved>(2), from.params};
      for (Saved& saved : back.states) saved = test::save(plain);
      ZeroRun again(comm, layout, rule, scaling(stage, DType::kFloat32));
      load(comm, *again.optimizer, again.params.view(), back);
      EXPECT_TRUE(test::same_state(
          copy_of(again.optimizer->state()),
          from.states[static_cast<std::size_t>(comm.rank())].values))
          << "stage " << stage;
    });
  }
}

TEST(ZeroAdopt, SaysWhichElementsARankHas) {
  for (const int world : {1, 2, 3})
    for (const int stage : {1, 2}) {
      const Checkpoint saved =
          saved_by(world, test::adam_rule(), stage, DType::kBFloat16);
      std::set<std::size_t> elements;
      std::size_t count = 0;
      for (const Saved& rank : saved.states) {
        for (const Range& range : rank.what.shard)
          for (std::size_t i = range.offset; i < range.end(); ++i, ++count)
            elements.insert(i);
        for (const char* name : {"exp_avg", "exp_avg_sq", "masters"}) {
          const optim::StateArray* const array = rank.what.find(name);
          ASSERT_NE(array, nullptr) << name;
          EXPECT_EQ(array->sharing, optim::Sharing::kSharded);
          EXPECT_EQ(array->ranges, rank.what.shard);
          EXPECT_EQ(array->is_parameters, array->name == "masters");
        }
      }
      EXPECT_EQ(count, two_groups().size());
      EXPECT_EQ(elements.size(), count);
    }
}

}  // namespace
}  // namespace thinwire::zero::adopt_test
