// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/options.h"

#include <fmt/format.h>

#include "thinwire/optim/onebit_adam.h"

namespace thinwire::train_gpt {

std::vector<std::pair<std::string, std::string>> settings_of(
    const Options& options) {
  const std::string freeze = options.freeze_step == optim::kAutoFreeze
                                 ? "auto"
                                 : fmt::to_string(options.freeze_step);
  return {{"optimizer", options.optimizer},
          {"semantics", std::string(to_string(options.semantics))},
          {"freeze_step", freeze},
          {"steps", fmt::to_string(options.steps)},
          {"batch", fmt::to_string(options.batch)},
          {"context", fmt::to_string(options.context)},
          {"layers", fmt::to_string(options.layers)},
          {"width", fmt::to_string(options.width)},
          {"heads", fmt::to_string(options.heads)},
          {"lr", fmt::to_string(options.lr)},
          {"warmup_steps", fmt::to_string(options.warmup_steps)},
          {"weight_decay", fmt::to_string(options.weight_decay)},
          {"clip", fmt::to_string(options.clip)},
          {"seed", fmt::to_string(options.seed)}};
}

}  // namespace thinwire::train_gpt
