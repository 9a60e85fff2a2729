// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "examples/train_gpt/options/options.h"
#include "thinwire/config/config.h"

namespace thinwire::train_gpt {

/// Whether a run begins anew or resumes. A resumed run uses the checkpoint's
/// stages unless the user sets them.
enum class Start { kAnew, kResumed };

/// Returns the engine's configuration for these options. Keys of --set take
/// precedence over flags, flags over the file, and the file over the defaults.
/// Defaults suit the number of steps. Throws Error(kInvalidArgument) naming the
/// option or key.
[[nodiscard]] config::Config training_config(const Options& options,
                                             Start start = Start::kAnew);

/// Returns when and where the run saves. Under mpirun SIGTERM and SIGINT end a
/// run without saving. Elsewhere they also save it if checkpoints are on.
/// Throws Error(kInvalidArgument).
[[nodiscard]] Saving saving_of(const Options& options,
                               const config::Config& config);

/// Returns the options that decide a run's result and are not in `config`, by
/// key, in a fixed order. Ranks compare them, and config.json holds them.
/// `config` is training_config(options).
[[nodiscard]] Settings settings_of(const Options& options,
                                   const config::Config& config);

/// Returns the samples of one backward and the backwards of one step, of which
/// a file may give only one.
[[nodiscard]] config::BatchSizes batch_of(const config::Config& config,
                                          int world);

}  // namespace thinwire::train_gpt
