// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/removed_options.h"
#include "core/json_text.h"
#include "engine/engine_impl.h"
#include "optim/saved_state.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/log.h"

namespace thinwire::engine {

namespace {

JsonValue parse_saved_config(const std::string& text) {
  try {
    return read_json(text);
  } catch (const Error& error) {
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("the configuration cannot be read: {}", error.what()));
  }
}

// Adds every value of a configuration by its path, for example "optimizer.lr".
void flatten(const JsonValue& value, const std::string& path,
             std::map<std::string, std::string>& values) {
  if (!value.is_object()) {
    values[path] = brief_json(value);
    return;
  }
  for (const auto& [name, member] : value.items())
    flatten(member, path.empty() ? name : path + '.' + name, values);
}

// Returns whether a setting only affects reports or saves.
bool is_of_reports(std::string_view name) {
  for (const std::string_view section :
       {"thinwire.checkpoint.", "thinwire.telemetry."})
    if (name.starts_with(section)) return true;
  return name == "steps_per_print" || name == "wall_clock_breakdown" ||
         name == "memory_breakdown";
}

// Returns whether a load restores the saved value of a setting that is unset
// now.
bool is_restored(std::string_view name) {
  return name == "optimizer.params.freeze_step" ||
         name == "optimizer.params.var_freeze_step";
}

// Returns a line for each change that can affect training.
std::vector<std::string> changed_settings(const std::string& saved,
                                          const std::string& present) {
  std::map<std::string, std::string> before;
  std::map<std::string, std::string> now;
  if (saved.empty()) return {};
  flatten(parse_saved_config(saved), "", before);
  flatten(read_json(present), "", now);
  std::vector<std::string> lines;
  for (const auto& [name, value] : now) {
    if (is_of_reports(name)) continue;
    const auto old = before.find(name);
    if (old == before.end() || old->second != value)
      lines.push_back(
          fmt::format("{} is {} now, and was {}", name, value,
                      old == before.end() ? "not set" : old->second));
  }
  for (const auto& [name, value] : before)
    if (now.count(name) == 0 && !is_of_reports(name) && !is_restored(name) &&
        !checkpoint::is_removed_option(name))
      lines.push_back(
          fmt::format("{} is not set now, and was {}", name, value));
  return lines;
}

// Returns the configuration as JSON, without groups and without options of the
// caller's own rule. Only the program sets these, and no file contains them.
std::string text_of(config::Config config, bool has_own_rule) {
  std::visit([](auto& options) { options.groups.clear(); }, config.optimizer);
  if (!has_own_rule) return config.to_json();
  JsonValue text = read_json(config.to_json());
  text.erase("optimizer");
  return write_json(text);
}

std::string rate_key(std::size_t group) {
  return fmt::format("learning_rate/{}", group);
}

}  // namespace

void Engine::Impl::require_between_windows(const char* what) const {
  if (window->backwards() > 0 || window->in_backward())
    refuse(fmt::format("{}: inside a window of accumulation; call step() first",
                       what));
  if (in_evaluation)
    refuse(fmt::format("{}: in an evaluation; end it first", what));
}

checkpoint::Training Engine::Impl::training() {
  checkpoint::Training all{
      .comm = comm,
      .layout = layout,
      .params = params,
      .optimizer = optimizer(),
      .step = steps,
      .scalars = {},
      .zero_stage = static_cast<int>(config.zero.stage),
      .semantics = std::string(to_string(config.semantics)),
      .config = text_of(config, own_rule != nullptr),
      .experts = config.experts()};
  all.scalars.put_integer("engine_steps", steps);
  const auto& by_hand = rates.by_hand();
  for (std::size_t g = 0; g < by_hand.size(); ++g)
    if (by_hand[g]) all.scalars.put_real(rate_key(g), *by_hand[g]);
  if (others) {
    Others beside = others();
    all.others = std::move(beside.tensors);
    all.aliases = std::move(beside.aliases);
  }
  return all;
}

Engine::Impl::Continuation Engine::Impl::continuation(
    const checkpoint::LoadReport& found) const {
  Continuation next{.steps = found.step};
  next.by_hand.resize(optimizer().groups().num_groups());
  for (std::size_t g = 0; g < next.by_hand.size(); ++g)
    if (const std::string key = rate_key(g); found.scalars.has_scalar(key))
      next.by_hand[g] =
          optim::saved_real(found.scalars, key, optim::Sign::kNotNegative);
  constexpr const char* kSteps = "engine_steps";
  if (found.scalars.has_scalar(kSteps) &&
      found.scalars.integer(kSteps) != found.step)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("'{}' must be {}, the step of the manifest, got {}",
                            kSteps, found.step, found.scalars.integer(kSteps)));
  next.changed =
      changed_settings(found.config, text_of(config, own_rule != nullptr));
  return next;
}

checkpoint::LoadOptions Engine::Impl::checked(
    const checkpoint::LoadOptions& options, Continuation& next) const {
  checkpoint::LoadOptions all = options;
  all.accept = [&, this](const checkpoint::LoadReport& found) {
    if (options.what == checkpoint::What::kAll) next = continuation(found);
    if (options.accept) options.accept(found);
  };
  return all;
}

checkpoint::SaveReport Engine::save(const std::string& root,
                                    const checkpoint::Extra& extra,
                                    const checkpoint::SaveOptions& options) {
  comm::require_everywhere(impl_->comm,
                           [this] { impl_->require_between_windows("save"); });
  return impl_->exchange([&] {
    return impl_->saver.save(impl_->training(), root, extra, options);
  });
}

checkpoint::Training Engine::Impl::training_to_load() {
  comm::require_everywhere(comm, [this] { require_between_windows("load"); });
  saver.wait();
  return training();
}

// Replaces the saved rates, which the optimizer has loaded, by this run's
// rates. Keeps rates that the program has set by hand.
void Engine::Impl::restore(checkpoint::LoadReport& loaded,
                           checkpoint::What what, Continuation&& next) {
  marks.forget();
  if (what != checkpoint::What::kAll) return;
  rates.restore(std::move(next.by_hand));
  steps = next.steps;
  watch_anew();
  saver.set_loaded_from(loaded);
  for (std::string& line : next.changed) {
    if (comm.rank() == 0) log(LogLevel::kInfo, line);
    loaded.notes.push_back(std::move(line));
  }
}

std::optional<checkpoint::LoadReport> Engine::resume(
    const std::string& path, const checkpoint::LoadOptions& options) {
  const checkpoint::Training training = impl_->training_to_load();
  Impl::Continuation next;
  auto loaded = impl_->exchange([&] {
    return checkpoint::resume(training, path, impl_->checked(options, next));
  });
  if (loaded) impl_->restore(*loaded, options.what, std::move(next));
  return loaded;
}

checkpoint::LoadReport Engine::load(const std::string& path,
                                    const checkpoint::LoadOptions& options) {
  const checkpoint::Training training = impl_->training_to_load();
  Impl::Continuation next;
  auto loaded = impl_->exchange([&] {
    return checkpoint::load(training, path, impl_->checked(options, next));
  });
  impl_->restore(loaded, options.what, std::move(next));
  return loaded;
}

void Engine::set_others(std::function<Others()> others) {
  impl_->others = std::move(others);
}

}  // namespace thinwire::engine
