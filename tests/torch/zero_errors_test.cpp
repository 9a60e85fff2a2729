// SPDX-License-Identifier: Apache-2.0
// ZeRO under LibTorch: backwards that fail, and what is refused.
#include <gtest/gtest.h>

#include <stdexcept>

#include "support/errors.h"
#include "torch/zero_net.h"

namespace thinwire::torch::zero_errors_test {
namespace {

using test::expect_error;

// A backward that throws at its beginning, or where the layout's last
// parameters have their gradients, which leave first.
void fail(Trained& trained, bool at_once) {
  ZeroNet& net = trained.net;
  const at::Tensor x =
      at::ones({4, 20}, net.first->weight.options().requires_grad(false));
  const at::Tensor y = at::tanh(net.first->forward(x));
  const at::Tensor z =
      net.last->forward(net.tied->forward(net.second->forward(y)));
  const at::Tensor loss =
      (net.side->forward(z).sum() + net.left->forward(x).sum() +
       net.right->forward(x).sum())
          .to(at::kFloat);
  (at_once ? loss : y).register_hook([](const at::Tensor&) -> void {
    throw std::runtime_error("no gradient of this");
  });
  trained.engine.backward(loss);
}

TEST(TorchZeroErrors, AFailedBackwardLeavesNothingBehind) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const int stage : {1, 2})
      for (const std::int64_t backwards : {1, 2})
        for (const int world : {1, 2})
          run(world, [&](comm::Communicator& comm) {
            const auto config = zero_config(stage, dtype, backwards);
            Trained want(comm, config);
            Trained got(comm, config);
            for (int t = 1; t <= 3; ++t) {
              // Of one rank nothing leaves, so its window may have begun.
              if (world == 1 && backwards == 2 && t > 1) {
                got.backward(77);
                got.engine.step();
              }
              EXPECT_THROW(fail(got, world > 1), std::runtime_error);
              expect_error(ErrorCode::kFailedPrecondition, {"no backward"},
                           [&] { got.engine.step(); });
              for (Trained* trained : {&want, &got})
                for (int micro = 0; micro < backwards; ++micro)
                  trained->step(t + 10 * micro);
              ASSERT_EQ(bytes_of(got.engine.params()),
                        bytes_of(want.engine.params()));
            }
          });
}

TEST(TorchZeroErrors, AGradientThatIsSetFromOutside) {
  run(1, [](comm::Communicator& comm) {
    Trained trained(comm, zero_config(2));
    at::Tensor& weight = trained.net.first->weight;
    weight.mutable_grad() = at::zeros_like(weight);
    expect_error(ErrorCode::kFailedPrecondition,
                 {"gradient of 'first.weight'", "released"},
                 [&] { trained.backward(1); });
    trained.net.zero_grad();
    EXPECT_TRUE(trained.step(1).applied);
  });
}

}  // namespace
}  // namespace thinwire::torch::zero_errors_test
