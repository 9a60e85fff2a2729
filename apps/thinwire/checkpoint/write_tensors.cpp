// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/checkpoint/write_tensors.h"

#include <map>

#include "checkpoint/disk/file_system.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::apps::checkpoint_tool {

namespace {

std::span<const std::byte> bytes_of(ConstView view) {
  return {static_cast<const std::byte*>(view.data()), view.bytes()};
}

void write_values(checkpoint::File& file, std::uint64_t begin,
                  const Tensor& tensor) {
  const DType dtype = tensor.type.dtype;
  for_pieces(tensor.values.size, [&](Range range) {
    Buffer values(range.size, tensor.values.dtype);
    tensor.values.read(range, values.view());
    if (dtype != values.dtype()) {
      Buffer converted(range.size, dtype);
      kernels::convert(values.view(), converted.view());
      values = std::move(converted);
    }
    file.write_at(begin + range.offset * size_of(dtype),
                  bytes_of(values.view()));
  });
}

}  // namespace

std::uint64_t write_tensors(const std::string& path,
                            const std::vector<Tensor>& tensors) {
  std::vector<checkpoint::TensorEntry> entries;
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : tensors) {
    entries.push_back({tensor.name, tensor.type, tensor.shape});
    by_name[tensor.name] = &tensor;
  }
  const auto header =
      checkpoint::place_tensors(std::move(entries), {{"format", "pt"}});
  const auto file = checkpoint::posix_file_system().create(path);
  file->allocate(header.file_bytes);
  const std::string text = checkpoint::write_header(header);
  file->write_at(0, std::as_bytes(std::span(text)));
  for (const checkpoint::TensorEntry& entry : header.tensors)
    write_values(*file, entry.begin, *by_name.at(entry.name));
  file->sync();
  file->close();
  return header.file_bytes;
}

void write_text(const std::string& path, const std::string& text) {
  const auto file = checkpoint::posix_file_system().create(path);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
  file->close();
}

}  // namespace thinwire::apps::checkpoint_tool
