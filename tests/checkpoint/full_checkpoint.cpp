// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/full_checkpoint.h"

#include <vector>

#include "support/values.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/local.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::checkpoint::test {

namespace {

constexpr std::int64_t kSteps = 8;  // the last two are local

const optim::ZeroOneAdamOptions kOptions{.learning_rate = 0.01,
                                         .var_freeze_step = 3,
                                         .var_update_scaler = 1,
                                         .local_step_scaler = 1,
                                         .local_step_clipper = 3};

Extra extra_of(int rank, std::int64_t seen) {
  Extra extra;
  extra.common.put_integer("next", 17);
  extra.common.put("seen", std::vector<std::int64_t>{seen, 5, 8});
  extra.own.put_integer("rank", rank);
  extra.own.put("random",
                std::vector<std::uint8_t>(static_cast<std::size_t>(rank) + 2,
                                          static_cast<std::uint8_t>(seen)));
  return extra;
}

}  // namespace

std::string write_full(const std::string& root, const Full& full) {
  std::string path;
  const auto layout = ParameterLayout::of(
      {{"w", {40, 30}, 0}, {"b", {33}, 1}, {"empty", {0}, 0}, {"one", {}, 1}},
      2);
  comm::run_local_ranks(full.world, [&](comm::Communicator& comm) {
    std::vector<float> params(layout.size(), 1.0f);
    std::vector<float> frozen(12, full.frozen);
    std::vector<std::uint8_t> mask{1, 0, 1};
    optim::ZeroOneAdam optimizer(comm, layout, kOptions);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      auto grads = thinwire::test::normal(
          layout.size(), static_cast<std::uint32_t>(t * 8 + comm.rank()));
      optimizer.step(params, grads);
    }
    const Training training{.comm = comm,
                            .layout = layout,
                            .params = params,
                            .optimizer = optimizer,
                            .step = kSteps,
                            .others = {{"frozen", {3, 4}, View(frozen)},
                                       {"mask", {3}, View(mask), true}},
                            .aliases = {{"tied", "w"}}};
    const SaveReport report =
        save(training, root, extra_of(comm.rank(), full.seen),
             {.durable = false, .residuals = full.residuals});
    if (comm.rank() == 0) path = report.path;
  });
  return path;
}

}  // namespace thinwire::checkpoint::test
