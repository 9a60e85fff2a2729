// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "checkpoint/commit/find_checkpoints.h"
#include "checkpoint/format/fields.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/saved_arrays.h"
#include "checkpoint/read/verified_file.h"
#include "checkpoint/read/weights.h"
#include "thinwire/checkpoint/inspect.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

namespace {

template <class Bits>
std::uint64_t count_nonfinite(std::span<const Bits> values, Bits exponent) {
  std::uint64_t count = 0;
  for (const Bits bits : values) count += (bits & exponent) == exponent;
  return count;
}

// Returns the number of NaN and infinite values by their bits, or 0 for
// integers. Data are aligned to their element size.
std::uint64_t count_nonfinite(ConstView values) {
  const auto as = [&]<class Bits>(Bits exponent) {
    return count_nonfinite(
        std::span(static_cast<const Bits*>(values.data()), values.size()),
        exponent);
  };
  switch (values.dtype()) {
    case DType::kFloat32:
      return as(std::uint32_t{0x7f80'0000});
    case DType::kFloat16:
      return as(std::uint16_t{0x7c00});
    case DType::kBFloat16:
      return as(std::uint16_t{0x7f80});
    case DType::kFloat64:
      return as(std::uint64_t{0x7ff0'0000'0000'0000});
    default:
      return 0;
  }
}

class Verifier {
 public:
  Verifier(FileSystem& files, const std::string& directory,
           const Progress& progress)
      : files_(files), directory_(directory), progress_(progress) {}

  Verdict run() {
    const std::string name(kManifestName);
    const std::string path = in(name);
    if (!files_.exists(path))
      throw Error(ErrorCode::kUnavailable,
                  fmt::format("{}: there is no checkpoint: {} is missing",
                              directory_, kManifestName));
    std::optional<Manifest> manifest;
    const std::uint64_t bytes = files_.stat(path).bytes;
    attempt(name, bytes, [&] {
      require_regular(files_, path);
      manifest = read_manifest(files_, directory_);
    });
    verdict_.bytes = bytes;
    if (!manifest) return std::move(verdict_);
    total_ = bytes;
    for (const SavedFile& file : manifest->files) total_ += file.bytes;
    for (const SavedFile& file : manifest->files) take(file);
    // The contents are checked only if all files are intact.
    if (!verdict_.good()) {
      name_parameters(*manifest);
      name_spare_weights(*manifest);
    } else {
      attempt(name, bytes,
              [&] { const SavedArrays all(files_, directory_, *manifest); });
      attempt(name, bytes, [&] { compare_weights(*manifest); });
    }
    return std::move(verdict_);
  }

 private:
  std::string in(const std::string& name) const {
    return directory_ + "/" + name;
  }
  void damaged(const std::string& name, std::uint64_t begin, std::uint64_t end,
               std::string what) {
    verdict_.damages.push_back({name, begin, end, std::move(what)});
  }
  // Counts an error of `call` as damage to this file. A file that cannot be
  // read at the moment may be undamaged.
  void attempt(const std::string& name, std::uint64_t bytes,
               const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorruptCheckpoint) throw;
      damaged(name, 0, bytes, error.what());
    }
  }

  void take(const SavedFile& saved) {
    attempt(saved.name, saved.bytes, [&] {
      const std::uint64_t bytes =
          require_regular(files_, in(saved.name), saved.host);
      if (bytes != saved.bytes)
        return damaged(saved.name, std::min(bytes, saved.bytes),
                       std::max(bytes, saved.bytes),
                       fmt::format("it has {} bytes, the manifest says {}",
                                   bytes, saved.bytes));
      const auto file = files_.open(in(saved.name), false);
      take_chunks(saved, *file, header_of(saved));
    });
  }

  // Returns the header if it is undamaged.
  std::optional<SafetensorsHeader> header_of(const SavedFile& saved) {
    if (!saved.name.ends_with(".safetensors")) return std::nullopt;
    try {
      return VerifiedFile(files_, directory_, saved).header();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorruptCheckpoint) throw;
      header_problem_ = error.what();
      return std::nullopt;
    }
  }

  void take_chunks(const SavedFile& saved, File& file,
                   const std::optional<SafetensorsHeader>& header) {
    const std::size_t before = verdict_.damages.size();
    const bool has_header = saved.name.ends_with(".safetensors");
    for (std::size_t i = 0; i < saved.chunk_hashes.size(); ++i) {
      const std::uint64_t begin = i * kChunkBytes;
      const std::uint64_t size = std::min(kChunkBytes, saved.bytes - begin);
      const std::span chunk(static_cast<std::byte*>(buffer_.data()), size);
      const std::size_t count = file.read_at(begin, chunk);
      if (count == size &&
          checksum(ConstView(chunk)) == saved.chunk_hashes[i]) {
        if (header) count_values(*header, begin, chunk);
      } else {
        const std::string what =
            header       ? tensors_in(*header, begin, begin + size)
            : has_header ? "the header, or data that shares these bytes with it"
                         : "an attachment, which no load reads";
        damaged(saved.name, begin, begin + size, what);
      }
      verdict_.bytes += size;
      if (progress_) progress_(verdict_.bytes, total_);
    }
    // The bytes are intact but have no valid header, so the file was written
    // that way.
    if (has_header && !header && verdict_.damages.size() == before)
      damaged(saved.name, 0, saved.bytes, header_problem_);
  }

  void count_values(const SafetensorsHeader& header, std::uint64_t begin,
                    std::span<const std::byte> chunk) {
    const std::uint64_t end = begin + chunk.size();
    for (const TensorEntry& tensor : header.tensors) {
      const std::uint64_t first = std::max(tensor.begin, begin);
      const std::uint64_t last = std::min(tensor.end(), end);
      if (first >= last || !tensor.type.other.empty()) continue;
      const DType dtype = tensor.type.dtype;
      verdict_.nonfinite +=
          count_nonfinite(ConstView(chunk.data() + (first - begin),
                                    (last - first) / size_of(dtype), dtype));
    }
  }

  // Usually only data are damaged, so that the index tensors can still be read.
  void name_parameters(const Manifest& manifest) {
    try {
      const SavedArrays arrays(files_, directory_, manifest);
      for (Damage& damage : verdict_.damages)
        for (std::size_t i = 0; i < manifest.files.size(); ++i)
          if (manifest.files[i].name == damage.file &&
              !manifest.files[i].tensors.empty())
            damage.what = arrays.describe(i, damage.begin, damage.end);
    } catch (const Error&) {  // the ranges that are known must suffice
    }
  }

  // If there are masters, a full load reads only two parts of the weights.
  // These are buffers and the first chunk, which contains the header.
  void name_spare_weights(const Manifest& manifest) {
    if (std::ranges::none_of(manifest.arrays, &SavedArray::is_parameters) ||
        !manifest.others.empty())
      return;
    for (Damage& damage : verdict_.damages)
      if (damage.begin > 0 &&
          std::ranges::count(manifest.weight_files, damage.file) > 0)
        damage.what += " (a resume reads the masters instead)";
  }

  void compare_weights(const Manifest& manifest) {
    const Weights weights(files_, directory_, manifest);
    for (const auto* list : {&manifest.parameters, &manifest.others})
      for (const SavedParameter& parameter : *list) {
        const TensorEntry* const tensor = weights.find(parameter.name);
        if (tensor == nullptr)
          corrupt(in(std::string(kManifestName)),
                  fmt::format("'{}' is in no file of weights", parameter.name));
        if (tensor->shape != parameter.shape || tensor->type != parameter.type)
          corrupt(in(std::string(kManifestName)),
                  fmt::format("'{}' has another shape or dtype in the file of "
                              "weights",
                              parameter.name));
      }
  }

  FileSystem& files_;
  const std::string& directory_;
  const Progress& progress_;
  Verdict verdict_;
  std::uint64_t total_ = 0;
  std::string header_problem_;
  Buffer buffer_ = Buffer::of<std::byte>(kChunkBytes);
};

}  // namespace

Verdict verify(const std::string& path, const Progress& progress) {
  return Verifier(posix_file_system(), path, progress).run();
}

}  // namespace thinwire::checkpoint
