// SPDX-License-Identifier: Apache-2.0
#include "config/keywords.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/fields.h"
#include "config/keys.h"
#include "config/sections.h"
#include "core/edit_distance.h"
#include "core/require.h"
#include "thinwire/core/checksum.h"

namespace thinwire::config {

namespace {

template <class Options>
inline constexpr bool kMayLoop = !requires(Options o) {
  o.compression;
}
|| std::is_same_v<Options, optim::OnebitAdamOptions>;

using Names = std::vector<std::string>;

[[noreturn]] void reject_type(const std::string& message) {
  throw WrongType(ErrorCode::kInvalidArgument, message);
}

// Returns the suggestion in a message about an unknown name.
std::string suggestion(std::string_view name, const Names& known) {
  const std::string_view near = nearest_name(name, known);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

// Calls read() with a Reader of `given`, in which a null counts as absent. Then
// calls refuse() for each name that is neither in `known` nor a field's name.
template <class Read, class Refuse>
void read_named(const JsonValue& given, std::string path, Names known,
                const Read& read, const Refuse& refuse) {
  JsonValue values = JsonValue::object();
  for (const auto& [name, value] : given.items())
    if (!value.is_null()) values[name] = value;
  Reader reader(&values, std::move(path), Paths::kPython);
  reader.note_names(known);
  read(reader);
  for (const auto& [name, value] : given.items())
    if (std::ranges::find(known, name) == known.end()) refuse(name, known);
}

[[noreturn]] void reject_keyword(std::string_view type, const std::string& name,
                                 const Names& known) {
  const std::string path = "thinwire." + name;
  const auto rules = key_rules();
  const auto rule = std::ranges::find(rules, path, &KeyRule::path);
  std::string text =
      fmt::format("{}() got an unexpected keyword argument '{}'{}", type, name,
                  suggestion(name, known));
  if (rule != rules.end() && rule->status == KeyStatus::kRejected)
    text = fmt::format("{}() has no keyword '{}' any more: {}", type, name,
                       rule->text);
  else if (rule != rules.end() && rule->only.empty())
    text = fmt::format(
        "{}() has no keyword '{}': set {} in a configuration of "
        "thinwire.initialize",
        type, name, path);
  reject_type(text);
}

void read_outer(const JsonValue& given, outer::OuterOptions& options) {
  if (!given.is_object())
    reject_type("outer must be a dict or None, got " + brief_json(given));
  read_named(
      given, "outer", {},
      [&](const Reader& reader) { outer_fields(reader, options); },
      [](const std::string& name, const Names& known) {
        reject_type(fmt::format("outer: got an unexpected key '{}'{}", name,
                                suggestion(name, known)));
      });
  if (!given.contains("sync_every"))
    reject("outer must have the key 'sync_every', >= 1");
  require(options.sync_every >= 1, "outer['sync_every']", ">= 1",
          options.sync_every);
}

OptimizerConfig optimizer_of(std::string_view type) {
  if (type == "LeanOnebitAdam") return default_optimizer(kLeanIndex);
  for (const auto& [name, index] : kOptimizerTypes)
    if (lower(name) == lower(type)) return default_optimizer(index);
  reject(fmt::format("unknown type of optimizer '{}'", type));
}

template <class Group>
void read_group(const JsonValue& given, const std::vector<float>& mask,
                std::size_t index, Group& group) {
  const std::string path = fmt::format("param_groups[{}]", index);
  read_named(
      given, path, {},
      [&](const Reader& reader) { group_fields(reader, group); },
      [&](const std::string& name, const Names&) {
        reject(fmt::format("{}['{}']: this optimizer has no such option", path,
                           name));
      });
  if constexpr (requires { group.exp_avg_mask; })
    group.exp_avg_mask = mask;
  else if (!mask.empty())
    reject(path +
           "['exp_avg_mask']: this optimizer has no masks, it compresses "
           "nothing");
}

}  // namespace

void set_optimizer(Config& config, std::string_view type,
                   const JsonValue& given,
                   const std::vector<std::string>& others) {
  Config made = config;
  made.optimizer = optimizer_of(type);
  const auto read = [&]<class Options>(const Reader& reader, Options& options) {
    keyword_fields(reader, made, options);
    if constexpr (requires { options.decoupled_decay; })
      if (type == "Adam") reader.field("adam_w_mode", options.decoupled_decay);
    if (kMayLoop<Options> && reader.has("outer"))
      read_outer(given.at("outer"), made.outer);
  };
  std::visit(
      [&](auto& options) {
        read_named(
            given, "", others,
            [&](const Reader& reader) { read(reader, options); },
            [&](const std::string& name, const Names& known) {
              reject_keyword(type, name, known);
            });
      },
      made.optimizer);
  config = std::move(made);
}

void set_groups(Config& config, const std::vector<JsonValue>& groups,
                const std::vector<std::vector<float>>& masks) {
  std::visit(
      [&](auto& options) {
        auto made = options.groups;
        made.clear();
        made.resize(groups.size());
        for (std::size_t k = 0; k < groups.size(); ++k)
          read_group(groups[k],
                     k < masks.size() ? masks[k] : std::vector<float>{}, k,
                     made[k]);
        options.groups = std::move(made);
      },
      config.optimizer);
}

std::string describe_groups(const OptimizerConfig& optimizer) {
  std::string text;
  const auto describe = [&text](const auto& group) {
    JsonValue fields = JsonValue::object();
    group_fields(Writer(fields), group);
    text += compact_json(fields);
    if constexpr (requires { group.exp_avg_mask; })
      text += fmt::format(" {} of a mask, checksum {:016x}",
                          group.exp_avg_mask.size(),
                          checksum(ConstView(group.exp_avg_mask)));
    text += '\n';
  };
  std::visit([&](const auto& o) { std::ranges::for_each(o.groups, describe); },
             optimizer);
  return text;
}

}  // namespace thinwire::config
