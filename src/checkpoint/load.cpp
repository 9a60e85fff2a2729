// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/commit/root.h"
#include "checkpoint/found.h"
#include "checkpoint/matching.h"
#include "checkpoint/read/state_reader.h"
#include "checkpoint/removed_options.h"
#include "checkpoint/save_plan.h"
#include "checkpoint/whole_model.h"
#include "core/require.h"
#include "optim/saved_state.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/log.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::checkpoint {

namespace {

using Clock = std::chrono::steady_clock;

// Data that one rank has read but not yet put in place.
struct Read {
  Buffer parameters;
  Buffer wide;                 // fp32 parameters, which follow 16-bit ones
  Buffer masters;              // fp32, for weights alone in 16 bits
  std::vector<Buffer> others;  // empty for tensors that were not found
  optim::Optimizer::Adoption adoption;
  std::vector<std::string> left_out{};  // names, of the checkpoint or of the
                                        // model
  LoadReport report;

  [[nodiscard]] View all_parameters() {
    return View::joined(parameters.view(), wide.view());
  }
};

// Adds to the options that tensors of foreign weights are ignored unless they
// are parameters of this model.
LoadOptions without(const Manifest& manifest,
                    const std::vector<const SavedParameter*>& others,
                    LoadOptions options) {
  for (const SavedParameter& saved : manifest.parameters)
    if (std::find(others.begin(), others.end(), &saved) != others.end())
      options.ignore.push_back(renamed(saved.name, options));
  return options;
}

// Throws if no weight belongs to this model, because the run would continue
// with its initial values.
void require_some(const Training& training, const Manifest& manifest,
                  const Matching& matching,
                  const std::vector<const SavedParameter*>& others) {
  const auto is_there = [](const auto& saved) { return bool(saved); };
  if (matching.saved.empty() || std::ranges::any_of(matching.saved, is_there) ||
      std::ranges::any_of(others, is_there))
    return;
  throw Error(
      ErrorCode::kCorruptCheckpoint,
      fmt::format(
          "the checkpoint belongs to another model: it has none of the "
          "model's {} parameters, such as '{}'; its {} have names such "
          "as '{}' (LoadOptions.rename gives them others)",
          matching.saved.size(), training.layout.parameters()[0].name,
          manifest.parameters.size(),
          manifest.parameters.empty() ? "" : manifest.parameters[0].name));
}

std::string text_of_left_out(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 10;
  std::string text = fmt::format(
      "not strict, so these were left out: {}",
      fmt::join(names.begin(),
                names.begin() +
                    static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)),
                ", "));
  if (names.size() > kMost)
    text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

// Adds to the options that experts of other ranks are ignored. Collective.
LoadOptions without_experts_elsewhere(const Training& training,
                                      const Manifest& manifest,
                                      LoadOptions options) {
  if (training.experts.empty()) return options;
  const WholeModel whole = whole_model(training.comm, training);
  std::set<std::string> elsewhere;
  for (std::size_t i = whole.num_dense; i < whole.own.size(); ++i)
    if (!whole.own[i])
      elsewhere.insert(without_wrappers(whole.layout.parameters()[i].name));
  for (const SavedParameter& saved : manifest.parameters)
    if (elsewhere.contains(without_wrappers(saved.name)))
      options.ignore.push_back(saved.name);
  return options;
}

// Error that every older checkpoint would cause as well.
struct Misfit : Error {
  using Error::Error;
};

// Like everywhere(), for errors that damaged bytes cannot cause.
void fit_everywhere(comm::Communicator& comm,
                    const std::function<void()>& body) {
  try {
    everywhere(comm, body);
  } catch (const Error& error) {
    throw Misfit(error.code(), error.what());
  }
}

void require_fits(const Training& training, const Found& found,
                  const LoadOptions& options) {
  const Manifest& manifest = found.manifest;
  require_no_removed_option(manifest.config);
  const bool is_reference =
      manifest.semantics == "deepspeed" || training.semantics == "deepspeed";
  if (!is_reference) return;
  if (found.is_foreign) {
    if (manifest.semantics == training.semantics) return;
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("{}: its states are for {} semantics, and this run has {} "
                    "semantics; examples/python/states_from_deepspeed.py "
                    "writes states of a 1-bit optimizer of DeepSpeed for "
                    "deepspeed semantics with --semantics deepspeed, and "
                    "otherwise for corrected semantics",
                    found.path, manifest.semantics, training.semantics));
  }
  if (manifest.semantics != training.semantics ||
      manifest.world != training.comm.size())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format(
            "a checkpoint with {} semantics of {} ranks does not fit {} "
            "semantics on {}: deepspeed semantics resume only on as many "
            "ranks; load with what = kWeights (Python: weights_only=True)",
            manifest.semantics, manifest.world, training.semantics,
            training.comm.size()));
  // Arrays are read as a whole, so parameters must be in the saved order.
  const auto parameters = training.layout.parameters();
  for (std::size_t i = 0;
       i < std::min(parameters.size(), manifest.parameters.size()); ++i)
    if (renamed(manifest.parameters[i].name, options) != parameters[i].name)
      throw Error(
          ErrorCode::kCorruptCheckpoint,
          fmt::format("with deepspeed semantics parameters must be in "
                      "the order of the checkpoint: number {} is '{}' "
                      "there, and '{}' here",
                      i, manifest.parameters[i].name, parameters[i].name));
}

// Adds values that files of other programs lack: the optimizer, which is Adam
// or LAMB, and its learning rates.
void complete_foreign(const optim::State& target, StateDict& state) {
  const bool is_lamb = target.common.text("optimizer").ends_with("lamb");
  state.put_text("optimizer", is_lamb ? "lamb" : "adam");
  if (const optim::StateArray* const rates = target.find("learning_rates")) {
    Buffer values(rates->size, rates->dtype);
    rates->read({0, rates->size}, values.view());
    state.put(rates->name, std::move(values));
  }
}

// Residuals of ZeRO's low-bit exchange are in units of gradients. Only ZeRO
// with that exchange and lean 1-bit Adam restore such residuals. Lean 1-bit
// Adam has its own note.
void note_dropped_residuals(const Manifest& manifest,
                            const optim::State& target,
                            std::vector<std::string>& notes) {
  const std::string& optimizer = target.common.text("optimizer");
  const bool takes_them =
      target.encoded && (optimizer == "adam" || optimizer == "lamb" ||
                         optimizer == "lean_onebit_adam");
  const bool has_some =
      manifest.scalars.has_scalar("bits_up") &&
      std::ranges::any_of(manifest.arrays, [](const SavedArray& array) {
        return array.name == optim::kWorkerError;
      });
  if (has_some && !takes_them)
    notes.emplace_back(
        "the gradients' residuals of ZeRO's low-bit exchange are dropped: this "
        "run does not exchange gradients in 4 or 8 bits");
}

// Notes the local steps that a load loses. Only the state of an optimizer with
// local steps restores them.
void note_left_out_steps(const Manifest& manifest, bool restores_them,
                         std::vector<std::string>& notes) {
  const std::int64_t steps = steps_left_out(manifest);
  if (steps == 0 || restores_them) return;
  notes.push_back(fmt::format(
      "{} local steps after the last exchange are left out: save with "
      "local_steps = kSynchronize (Python: local_steps=\"synchronize\") to "
      "have "
      "them in the weights",
      steps));
}

// Replaces rank 0's parameters by this rank's own.
void take_own_parameters(const Training& training, StateDict& state,
                         Read& read) {
  if (!state.has_array(kOwnParameters)) return;
  everywhere(training.comm, [&] {
    const ConstView values =
        state.array(kOwnParameters, state.array(kOwnParameters).dtype(),
                    training.layout.size());
    optim::require_usable(kOwnParameters, values);
    kernels::convert(values, read.parameters.view());
    state.erase(kOwnParameters);
  });
}

void read_state(const Training& training, const Found& found,
                const optim::State& target, StateReader& reader,
                const LoadOptions& options, Read& read) {
  const Manifest& manifest = found.manifest;
  const MemoryScope scope(MemoryKind::kStates);  // the optimizer takes them
  note_dropped_residuals(manifest, target, read.report.notes);
  StateDict state = reader.state(target);
  reader.finish();
  take_own_parameters(training, state, read);
  state.put_integer("allow_rounding", options.allow_rounding ? 1 : 0);
  if (found.is_foreign)
    complete_foreign(target, state);
  else if (manifest.world != training.comm.size())
    read.report.notes.push_back(fmt::format("saved by {} ranks, loaded by {}",
                                            manifest.world,
                                            training.comm.size()));
  else if (!reader.are_same_ranks(target))
    read.report.notes.emplace_back(
        "ranks are grouped into other hosts than those that saved it");
  // Unusable values are no Misfit, because an older checkpoint may contain
  // usable ones.
  std::exception_ptr unusable;
  fit_everywhere(training.comm, [&] {
    try {
      read.adoption = training.optimizer.adopt(std::move(state));
    } catch (const optim::UnusableValue&) {
      unusable = std::current_exception();
    }
  });
  everywhere(training.comm, [&] {
    if (unusable) std::rethrow_exception(unusable);
  });
}

// Reads the application's data of all ranks.
void read_extras(const Training& training, const Manifest& manifest,
                 SavedArrays& arrays, LoadReport& report) {
  everywhere(training.comm, [&] {
    report.extra.common = arrays.extra();
    for (int r = 0; r < manifest.world; ++r)
      report.own_of_ranks.push_back(arrays.extra_of_rank(r));
    if (training.comm.rank() < manifest.world)
      report.extra.own.put_all(
          "",
          report.own_of_ranks[static_cast<std::size_t>(training.comm.rank())]);
  });
}

void require_usable_parameters(const Training& training,
                               const Matching& matching, ConstView values) {
  for (std::size_t i = 0; i < matching.saved.size(); ++i) {
    const Parameter& p = training.layout.parameters()[i];
    if (matching.saved[i])
      optim::require_usable(p.name, values.subview(p.offset, p.size));
  }
}

// Copies the present values of new parameters.
void keep_new_parameters(const Training& training, const Matching& matching,
                         Read& read) {
  for (std::size_t i = 0; i < matching.saved.size(); ++i) {
    if (matching.saved[i]) continue;
    const Parameter& p = training.layout.parameters()[i];
    read.report.notes.push_back(
        fmt::format("'{}' is not in the checkpoint: it keeps its values, and "
                    "its states begin at 0",
                    p.name));
    kernels::convert(training.params.subview(p.offset, p.size),
                     read.all_parameters().subview(p.offset, p.size));
  }
}

Read read_all(const Training& training, const Found& found,
              const LoadOptions& options) {
  const Manifest& manifest = found.manifest;
  FileSystem& files = posix_file_system();
  const bool with_states = options.what == What::kAll;
  Read read;
  Matching matching;
  const LoadOptions own =
      without_experts_elsewhere(training, manifest, options);
  std::vector<const SavedParameter*> others;
  fit_everywhere(training.comm, [&] {
    const LoadOptions names =
        with_renames(manifest, training.layout, training.others, own);
    if (with_states) require_fits(training, found, names);
    others = match_others(training.others, manifest, names, read.report.notes);
    matching = match(manifest.parameters, training.layout,
                     without(manifest, others, names),
                     with_states && !found.is_foreign);
    require_some(training, manifest, matching, others);
  });
  std::optional<SavedArrays> arrays;
  std::optional<Weights> weights;
  await_files(training.comm, files, found);
  everywhere(training.comm, [&] {
    try {
      if (found.has_states)
        arrays.emplace(files, found.path, manifest, SavedArrays::NamedStates{});
      else
        arrays.emplace(files, found.path, manifest);
      if (found.is_foreign)
        weights.emplace(files, found.path);
      else
        weights.emplace(files, found.path, manifest);
      read.others = read_others(others, *weights);
    } catch (const Error& error) {
      require_still_there(files, found, error);
      throw;
    }
  });
  StateReader reader(training.comm, training.layout, manifest, *arrays,
                     *weights, matching,
                     options.share_reads && training.experts.empty());
  const DType dtype = training.params.dtype();
  optim::State target;
  if (with_states) target = training.optimizer.state();
  note_left_out_steps(manifest, target.has_local_steps, read.report.notes);
  const std::size_t first = training.params.first_size();
  const Range behind{first, training.params.size() - first};
  read.parameters =
      reader.parameters(dtype, {0, first}, with_states ? &target : nullptr);
  read.wide = reader.parameters(DType::kFloat32, behind, nullptr);
  if (!with_states && dtype != DType::kFloat32)
    read.masters = reader.parameters(DType::kFloat32,
                                     {0, training.params.size()}, nullptr);
  reader.finish();
  everywhere(training.comm, [&] {
    for (const ConstView values :
         {ConstView(read.all_parameters()), ConstView(read.masters.view())})
      if (!values.empty())
        require_usable_parameters(training, matching, values);
  });
  if (with_states) read_state(training, found, target, reader, options, read);
  if (!found.is_foreign) read_extras(training, manifest, *arrays, read.report);
  read.report.bytes = sum_over_ranks(
      training.comm, arrays->bytes_read() + weights->bytes_read());
  keep_new_parameters(training, matching, read);
  read.left_out = std::move(matching.left_out);
  return read;
}

// Cannot fail, because all checks are done.
void put_in_place(const Training& training, const Manifest& manifest,
                  Read& read) {
  kernels::convert(read.all_parameters(), training.params);
  put_in_place(read.others, training.others);
  if (!read.adoption) {
    training.optimizer.set_masters(read.masters.empty()
                                       ? ConstView(training.params)
                                       : ConstView(read.masters.view()));
    return;
  }
  for (std::string& note : read.adoption())
    read.report.notes.push_back(std::move(note));
  optim::LocalSteps* const local = training.optimizer.local_steps();
  if (local != nullptr && manifest.steps_behind > 0)
    local->repeat(training.params);
}

// Adds warnings to `notes`.
LoadReport load_from(const Training& training, const Found& found,
                     const LoadOptions& options,
                     std::vector<std::string>& notes) {
  const Manifest& manifest = found.manifest;
  Read read = read_all(training, found, options);
  LoadReport& report = read.report;
  report.path = found.path;
  report.step = manifest.step;
  report.run = manifest.run;
  report.world = manifest.world;
  report.optimizer = manifest.optimizer;
  report.precision = manifest.precision;
  report.config = manifest.config;
  report.scalars.put_all("", manifest.caller);
  everywhere(training.comm, [&] {
    if (options.accept) options.accept(report);
  });
  put_in_place(training, manifest, read);
  if (!read.left_out.empty()) notes.push_back(text_of_left_out(read.left_out));
  return std::move(report);
}

void log_notes(const comm::Communicator& comm, LogLevel level,
               const std::vector<std::string>& notes) {
  if (comm.rank() != 0) return;
  for (const std::string& note : notes) log(level, note);
}

// With fall_back, skips damaged checkpoints and loads the next older one.
LoadReport load_newest(const Training& training, std::vector<Found> candidates,
                       const LoadOptions& options,
                       std::vector<std::string>& notes) {
  for (std::size_t i = 0;; ++i) {
    try {
      return load_from(training,
                       open_candidate(training.comm, posix_file_system(),
                                      std::move(candidates[i])),
                       options, notes);
    } catch (const Misfit&) {
      throw;
    } catch (const Error& error) {
      const bool is_damage = error.code() == ErrorCode::kCorruptCheckpoint;
      if (!is_damage || i + 1 == candidates.size()) throw;
      const std::string& next = candidates[i + 1].path;
      if (!options.fall_back)
        throw Error(error.code(), fmt::format("{}; the one before it is {}",
                                              error.what(), next));
      notes.push_back(fmt::format("{}; going back to {}", error.what(), next));
    }
  }
}

std::string description_of(const LoadOptions& options) {
  std::string text = fmt::format(
      "what {}\nfall_back {}\nallow_rounding {}\nshare_reads {}\nstrict {}\n",
      static_cast<int>(options.what), options.fall_back, options.allow_rounding,
      options.share_reads, options.strict);
  for (const auto& [from, to] : options.rename)
    text += fmt::format("rename {} to {}\n", from, to);
  for (const std::string& name : options.allow_missing)
    text += fmt::format("allow_missing {}\n", name);
  for (const std::string& name : options.ignore)
    text += fmt::format("ignore {}\n", name);
  return text;
}

}  // namespace

std::optional<LoadReport> resume(const Training& training,
                                 const std::string& path,
                                 const LoadOptions& options) {
  require(training.params.size() == training.layout.size(), "params",
          fmt::format("{} elements", training.layout.size()),
          training.params.size());
  comm::require_same(training.comm, "load options", description_of(options));
  const Clock::time_point start = Clock::now();
  std::vector<std::string> notes;
  std::vector<Found> candidates = find_candidates(
      training.comm, posix_file_system(), path, options.what, notes);
  if (candidates.empty()) {
    log_notes(training.comm, LogLevel::kWarning, notes);
    return std::nullopt;
  }
  LoadReport report =
      load_newest(training, std::move(candidates), options, notes);
  log_notes(training.comm, LogLevel::kWarning, notes);
  log_notes(training.comm, LogLevel::kInfo, report.notes);
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

LoadReport load(const Training& training, const std::string& path,
                const LoadOptions& options) {
  std::optional<LoadReport> report = resume(training, path, options);
  if (!report)
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{}: there is no complete checkpoint", path));
  return std::move(*report);
}

}  // namespace thinwire::checkpoint
