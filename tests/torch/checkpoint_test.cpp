// SPDX-License-Identifier: Apache-2.0
// What a checkpoint of a module has beside what the engine trains.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"
#include "thinwire/core/log.h"
#include "thinwire/torch/engine.h"
#include "thinwire/torch/random_state.h"
#include "torch/net.h"

namespace thinwire::torch::checkpoint_test {
namespace {

// Net with what is not trained: ranks begin with other values.
struct NetWithOthers : Net {
  explicit NetWithOthers(double shift) : Net(shift) {
    frozen = register_parameter("frozen", at::full({2, 3}, 10 + shift),
                                /*requires_grad=*/false);
    mask = register_buffer("mask", at::full({5}, shift > 0, at::kBool));
    count = register_buffer("count", at::full({}, 7 + shift, at::kLong));
    turned = register_buffer(
        "turned", at::full({3, 2}, 20 + shift, at::kDouble).transpose(0, 1));
    mask_again = register_buffer("mask_again", mask);
    small = register_buffer("small", at::full({2}, 1, at::kChar));
    register_buffer("small_again", small);
  }
  void change() {
    const ::torch::NoGradGuard no_grad;
    frozen.fill_(-1);
    mask.logical_not_();
    count.fill_(-1);
    turned.fill_(-1);
    small.fill_(-1);
  }
  at::Tensor frozen, mask, count, turned, mask_again, small;
};

config::Config as_they_are() {
  config::Config config = config_of();
  config.buffers = config::Buffers::kAsTheyAre;
  return config;
}

TEST(ModuleOthers, AreFrozenParametersAndBuffersUnderTheirFirstNames) {
  std::vector<std::string> lines;
  set_log_sink(
      [&](LogLevel, std::string_view text) { lines.emplace_back(text); });
  const NetWithOthers net(0);
  ModuleOthers module(net);
  const auto others = module.describe();
  set_log_sink({});
  std::vector<std::string> names;
  for (const auto& its : others.tensors) names.push_back(its.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"frozen", "mask", "count", "turned"}));
  EXPECT_EQ(others.tensors[0].shape, (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(others.tensors[0].values.dtype(), DType::kFloat32);
  EXPECT_TRUE(others.tensors[1].is_bool);
  EXPECT_EQ(others.tensors[1].values.dtype(), DType::kUInt8);
  EXPECT_TRUE(others.tensors[2].shape.empty());
  EXPECT_EQ(others.tensors[2].values.as<std::int64_t>()[0], 7);
  EXPECT_EQ(others.tensors[3].values.dtype(), DType::kFloat64);
  using Names = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(others.aliases, (Names{{"tied_again.weight", "tied.weight"},
                                   {"tied_again.bias", "tied.bias"},
                                   {"mask_again", "mask"}}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("'small'"), std::string::npos) << lines[0];
}

TEST(TorchCheckpoint, HasAllThatTheModuleHas) {
  for (const int world : {1, 2}) {
    const test::Folder folder;
    run(world, [&](comm::Communicator& comm) {
      NetWithOthers net(comm.rank());
      Engine engine(net, comm, as_they_are());
      const auto step = [&](int t) {
        engine.backward(loss_of(net, comm, t));
        engine.step();
      };
      step(1);
      checkpoint::Extra extra;
      if (comm.size() == 1) extra.own.put("random", random_state());
      const std::string path =
          engine.save(folder.path(), extra, {.durable = false}).path;
      const auto saved = floats(engine.params());
      const at::Tensor drawn = at::rand({3});
      step(2);
      const auto later = floats(engine.params());

      net.change();
      const checkpoint::LoadReport report = engine.load(path);
      EXPECT_EQ(report.step, 1);
      EXPECT_EQ(floats(engine.params()), saved);
      // Rank 0's, on all of them.
      EXPECT_TRUE(net.frozen.eq(10).all().item<bool>());
      EXPECT_FALSE(net.mask.any().item<bool>());
      EXPECT_EQ(net.count.item<std::int64_t>(), 7);
      EXPECT_TRUE(net.turned.eq(20).all().item<bool>());
      EXPECT_FALSE(net.turned.is_contiguous());
      EXPECT_TRUE(net.small.eq(-1).all().item<bool>()) << "not saved";
      if (comm.size() == 1) {
        set_random_state(report.extra.own.array("random"));
        EXPECT_TRUE(at::rand({3}).equal(drawn));
      }
      step(2);
      EXPECT_EQ(floats(engine.params()), later);
    });
  }
}

TEST(RandomState, OfAnotherKindIsRefused) {
  const at::Tensor before = at::rand({1});
  static_cast<void>(before);
  const Buffer state = random_state();
  Buffer floats_of_it(state.size(), DType::kFloat32);
  for (const ConstView wrong : {state.view().subview(0, state.size() - 1),
                                ConstView(floats_of_it.view())})
    test::expect_error(
        ErrorCode::kCorruptCheckpoint,
        {"the random state must be uint8 of", std::to_string(wrong.size())},
        [&] { set_random_state(wrong); });
  const at::Tensor drawn = at::rand({4});
  set_random_state(state.view());
  EXPECT_TRUE(at::rand({4}).equal(drawn));
}

}  // namespace
}  // namespace thinwire::torch::checkpoint_test
