// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/matching.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/edit_distance.h"
#include "core/require.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::checkpoint {

namespace {

// Returns the text " (nearest: NAME)", or an empty text if no name is similar.
std::string nearest(std::string_view name, const std::set<std::string>& names) {
  const std::string_view found = nearest_name(name, names);
  return found.empty() ? "" : fmt::format(" (nearest: {})", found);
}

// Globs that must each match something.
class Globs {
 public:
  Globs(const char* option, const std::vector<std::string>& patterns)
      : option_(option), patterns_(patterns), used_(patterns.size()) {}

  [[nodiscard]] bool take(std::string_view name) {
    bool found = false;
    for (std::size_t i = 0; i < patterns_.size(); ++i)
      if (matches(patterns_[i], name)) found = used_[i] = true;
    return found;
  }
  void require_used() const {
    for (std::size_t i = 0; i < patterns_.size(); ++i)
      require(used_[i], option_, "names or globs that match a parameter",
              patterns_[i]);
  }

 private:
  const char* option_;
  const std::vector<std::string>& patterns_;
  std::vector<bool> used_;
};

std::map<std::string, std::size_t> by_new_name(
    const std::vector<SavedParameter>& saved, const LoadOptions& options) {
  std::map<std::string, std::size_t> names;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const std::string& name = renamed(saved[i].name, options);
    if (!names.emplace(name, i).second)
      reject(fmt::format(
          "LoadOptions.rename gives two parameters the name '{}'", name));
  }
  return names;
}

std::string difference(const SavedParameter& saved, const Parameter& p,
                       bool with_groups) {
  if (saved.shape != p.shape)
    return fmt::format("shape {}: checkpoint {}, model {}\n", p.name,
                       saved.shape, p.shape);
  if (with_groups && saved.group != p.group)
    return fmt::format("group {}: checkpoint {}, model {}\n", p.name,
                       saved.group, p.group);
  return {};
}

std::string name_of(const TensorType& type) {
  return type.other.empty() ? to_string(type.dtype) : std::string(type.other);
}

// Returns whether types are equal, or both are floats, which are rounded as
// parameters are.
bool converts_to(const TensorType& from, const TensorType& to) {
  const auto is_float = [](const TensorType& type) {
    return type.other.empty() &&
           (type.dtype == DType::kFloat32 || type.dtype == DType::kFloat16 ||
            type.dtype == DType::kBFloat16);
  };
  return from == to || (is_float(from) && is_float(to));
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  pattern.remove_prefix(star + 1);
  for (std::size_t skipped = star; skipped <= name.size(); ++skipped)
    if (matches(pattern, name.substr(skipped))) return true;
  return false;
}

TensorType type_of(const OtherTensor& tensor) {
  const DType dtype = tensor.values.dtype();
  if (tensor.type.empty()) return {dtype};
  const auto known = tensor_type_from(tensor.type);
  if (!known || *known == TensorType{known->dtype} || known->dtype != dtype)
    reject(fmt::format("'{}': type {} does not fit values of {}", tensor.name,
                       tensor.type, to_string(dtype)));
  return *known;
}

std::string without_wrappers(std::string_view name) {
  constexpr std::string_view kWrapper = "module.";
  constexpr std::string_view kCompiled = "_orig_mod.";
  std::string left;
  while (!name.empty()) {
    const bool is_begin = left.empty() || left.back() == '.';
    if (is_begin && name.starts_with(kCompiled))
      name.remove_prefix(kCompiled.size());
    else if (left.empty() && name.starts_with(kWrapper))
      name.remove_prefix(kWrapper.size());
    else {
      left += name.front();
      name.remove_prefix(1);
    }
  }
  return left;
}

LoadOptions with_renames(const Manifest& manifest,
                         const ParameterLayout& layout,
                         const std::vector<OtherTensor>& others,
                         LoadOptions options) {
  std::set<std::string> saved;
  for (const auto* list : {&manifest.parameters, &manifest.others})
    for (const SavedParameter& its : *list) saved.insert(its.name);
  std::set<std::string> done;  // names of the model that are already matched
  for (const auto& [from, to] : options.rename) {
    require(saved.erase(from) != 0, "LoadOptions.rename",
            "from names of the checkpoint", from);
    done.insert(to);
  }
  // Names of the model, keyed by their text without prefixes. If names share a
  // key, its value is empty.
  std::map<std::string, std::string> own;
  const auto add = [&](const std::string& name) {
    if (saved.erase(name) != 0) done.insert(name);
    const auto [at, is_new] = own.emplace(without_wrappers(name), name);
    if (!is_new) at->second.clear();
  };
  for (const Parameter& p : layout.parameters()) add(p.name);
  for (const OtherTensor& other : others) add(other.name);
  for (const std::string& name : saved) {
    const auto at = own.find(without_wrappers(name));
    if (at != own.end() && !at->second.empty() &&
        done.insert(at->second).second)
      options.rename.emplace_back(name, at->second);
  }
  return options;
}

const std::string& renamed(const std::string& name,
                           const LoadOptions& options) {
  for (const auto& [from, to] : options.rename)
    if (from == name) return to;
  return name;
}

bool Matching::has_new() const {
  return std::any_of(saved.begin(), saved.end(),
                     [](const auto& index) { return !index; });
}

Matching match(const std::vector<SavedParameter>& saved,
               const ParameterLayout& layout, const LoadOptions& options,
               bool with_groups) {
  const std::map<std::string, std::size_t> names = by_new_name(saved, options);
  std::set<std::string> of_checkpoint;
  std::set<std::string> of_model;
  for (const auto& [name, index] : names) of_checkpoint.insert(name);
  for (const Parameter& p : layout.parameters()) of_model.insert(p.name);
  Globs allowed("LoadOptions.allow_missing", options.allow_missing);
  Globs ignored("LoadOptions.ignore", options.ignore);

  Matching found;
  std::string problems;
  const auto differs = [&](const char* how, const std::string& name,
                           const std::set<std::string>& names_there) {
    if (options.strict)
      problems +=
          fmt::format("{} {}{}\n", how, name, nearest(name, names_there));
    else
      found.left_out.push_back(fmt::format("{} '{}'", how, name));
  };
  for (const Parameter& p : layout.parameters()) {
    const auto at = names.find(p.name);
    const bool is_given_up = at != names.end() && ignored.take(p.name);
    if (at == names.end() || is_given_up) {
      found.saved.emplace_back();
      if (!is_given_up && !allowed.take(p.name))
        differs("missing", p.name, of_checkpoint);
      continue;
    }
    problems += difference(saved[at->second], p, with_groups);
    found.saved.emplace_back(at->second);
  }
  for (const std::string& name : of_checkpoint)
    if (of_model.count(name) == 0 && !ignored.take(name))
      differs("unexpected", name, of_model);
  if (!problems.empty()) {
    problems.pop_back();
    throw Error(ErrorCode::kCorruptCheckpoint,
                "the checkpoint belongs to another model:\n" + problems);
  }
  allowed.require_used();
  ignored.require_used();
  return found;
}

std::vector<const SavedParameter*> match_others(
    const std::vector<OtherTensor>& others, const Manifest& manifest,
    const LoadOptions& options, std::vector<std::string>& notes) {
  std::vector<const SavedParameter*> found;
  // Float buffers of foreign weights are listed among the parameters.
  std::map<std::string, const SavedParameter*> names;
  for (const auto* list : {&manifest.others, &manifest.parameters})
    for (const SavedParameter& its : *list)
      names.emplace(renamed(its.name, options), &its);
  for (const OtherTensor& other : others) {
    const auto at = names.find(other.name);
    const SavedParameter* saved = at == names.end() ? nullptr : at->second;
    for (const std::string& glob : options.ignore)
      if (matches(glob, other.name)) saved = nullptr;
    found.push_back(saved);
    if (saved == nullptr) {
      notes.push_back(fmt::format(
          "'{}' is not in the checkpoint, and stays as it is", other.name));
      continue;
    }
    const TensorType type = type_of(other);
    const bool converts = converts_to(saved->type, type);
    if (saved->shape != other.shape || !converts)
      throw Error(
          ErrorCode::kCorruptCheckpoint,
          fmt::format("'{}' has type {} and shape {} in the checkpoint, "
                      "and type {} and shape {} in the model",
                      other.name, name_of(saved->type), saved->shape,
                      name_of(type), other.shape));
  }
  return found;
}

std::vector<Buffer> read_others(const std::vector<const SavedParameter*>& saved,
                                Weights& weights) {
  std::vector<Buffer> all;
  for (const SavedParameter* other : saved) {
    Buffer& values = all.emplace_back();
    if (other == nullptr) continue;
    std::size_t size = 1;
    for (const std::size_t n : other->shape) size *= n;
    values = Buffer(size, other->type.dtype);
    weights.read(other->name, values.view());
  }
  return all;
}

void put_in_place(const std::vector<Buffer>& values,
                  const std::vector<OtherTensor>& others) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const ConstView from = values[i].view();
    if (from.empty()) continue;
    if (from.dtype() == others[i].values.dtype())
      std::memcpy(others[i].values.data(), from.data(), from.bytes());
    else
      kernels::convert(from, others[i].values);
  }
}

}  // namespace thinwire::checkpoint
