// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "examples/train_gpt/options/options.h"
#include "thinwire/config/config.h"

namespace thinwire::train_gpt {

/// Whether a run begins anew or continues from a checkpoint. In the latter case
/// stages that nobody names are the checkpoint's.
enum class Start { kAnew, kResumed };

/// The configuration of the engine for these options. A key of --set wins over
/// a flag, a flag over the file, and the file over the defaults, which suit the
/// number of steps. Throws Error(kInvalidArgument) naming the option or key.
[[nodiscard]] config::Config training_config(const Options& options,
                                             Start start = Start::kAnew);

/// Returns what the options and their training_config() ask for. Under mpirun
/// SIGTERM and SIGINT end a run as ever; elsewhere they save it too if
/// checkpoints are asked for. Throws Error(kInvalidArgument).
[[nodiscard]] Saving saving_of(const Options& options,
                               const config::Config& config);

/// The settings that decide a run's result, by option, in a fixed order: ranks
/// compare them, reports show them and config.json holds them. `config` is
/// training_config(options).
[[nodiscard]] Settings settings_of(const Options& options,
                                   const config::Config& config);

/// The samples of one backward and the backwards of one step: a file need not
/// give both.
[[nodiscard]] config::BatchSizes batch_of(const config::Config& config,
                                          int world);

}  // namespace thinwire::train_gpt
