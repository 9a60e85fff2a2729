// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/train_gpt/options/options.h"
#include "thinwire/config/config.h"

namespace thinwire::train_gpt {

/// The values of --optimizer.
[[nodiscard]] std::vector<std::string_view> optimizer_names();
/// Options::lr of an optimizer where nothing else gives it; nothing: there is
/// no optimizer of this name.
[[nodiscard]] std::optional<double> default_learning_rate(
    std::string_view optimizer);

/// Those of the flags that only some optimizers follow which this one does not.
[[nodiscard]] std::vector<const char*> idle_flags(std::string_view optimizer);

/// The file's number of warm-up steps is "auto".
[[nodiscard]] bool asks_for_warmup_steps(
    const std::vector<config::KeyNote>& keys);

/// Sets what no flag gives to what options.file says.
void take_from_file(const std::function<bool(const char* flag)>& is_given,
                    Options& options);

/// Sets what flags say to what options.set says of the same.
void take_from_settings(Options& options);

/// What the engine is to be told for these options.
[[nodiscard]] config::Config training_config(const Options& options);
/// The same for a run that goes on: stages that nobody names are the
/// checkpoint's.
[[nodiscard]] config::Config config_to_resume(const Options& options);

}  // namespace thinwire::train_gpt
