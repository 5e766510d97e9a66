#include "checkpoint/loader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/glob.h"
#include "checkpoint/quant_declaration.h"
#include "checkpoint/read_only_file.h"

namespace tandem {
namespace {

std::int64_t kept_rows(const TensorRequest& request) {
  std::int64_t n = 0;
  for (const auto& range : request.rows) n += range.count();
  return n;
}

std::int64_t memory_bytes(const TensorRequest& request, std::int64_t cols) {
  if (request.quantized) return code_row_bytes(request.quantized->format, cols);
  return cols * static_cast<std::int64_t>(dtype_bytes(request.as));
}

bool is_e4m3(WeightFormat format) {
  return format == WeightFormat::kFp8Block || format == WeightFormat::kFp8Tensor ||
         format == WeightFormat::kFp8Channel;
}

}  // namespace

std::vector<RowRange> kept_row_ranges(const TensorRequest& request) {
  if (!request.rows.empty()) return request.rows;
  return {{0, request.shape.empty() ? 1 : request.shape.front()}};
}

ColRange kept_col_range(const TensorRequest& request) {
  if (request.cols) return *request.cols;
  const std::int64_t rows = request.shape.empty() ? 1 : request.shape.front();
  return {0, rows == 0 ? 0 : shape_numel(request.shape) / rows};
}

std::int64_t memory_row_bytes(const TensorRequest& request) {
  return memory_bytes(request, kept_col_range(request).count());
}

// Matches requests and tensors both ways and collects what does not fit.
class Loader::Binder {
 public:
  Binder(const Checkpoint& checkpoint, const BindOptions& options)
      : checkpoint_(checkpoint), options_(options) {
    const auto declared = QuantDeclaration::read(checkpoint.directory(), faults_);
    formats_ = classify_weights(checkpoint, declared, faults_);
    for (const auto& layout : formats_.weights) layouts_[request_name(layout)] = &layout;
  }

  std::vector<Binding> bind(std::vector<TensorRequest> requests) {
    std::vector<Binding> bindings;
    for (auto& request : requests) {
      if (auto binding = bind_one(std::move(request))) bindings.push_back(std::move(*binding));
    }
    check_leftovers();
    faults_.throw_if_any(checkpoint_.directory().string());
    std::stable_sort(bindings.begin(), bindings.end(), [](const Binding& a, const Binding& b) {
      return std::pair(a.source->file, a.source->begin) <
             std::pair(b.source->file, b.source->begin);
    });
    return bindings;
  }

 private:
  void fault(const TensorEntry& entry, const std::string& name, const std::string& text) {
    faults_.add("{}: tensor \"{}\": {}", checkpoint_.files()[entry.file].name, name, text);
  }

  std::optional<Binding> bind_one(TensorRequest request) {
    const auto found = layouts_.find(request.name);
    if (found == layouts_.end()) {
      const TensorEntry* entry = checkpoint_.find(request.name);
      if (entry == nullptr) {
        faults_.add("tensor \"{}\" {} is missing", request.name, shape_text(request.shape));
      } else if (faults_.empty()) {  // otherwise the classification has said why
        fault(*entry, request.name, fmt::format("is {}, no weight", dtype_name(entry->dtype)));
      }
      used_.insert(request.name);
      return std::nullopt;
    }
    Binding binding;
    binding.layout = *found->second;
    binding.source = checkpoint_.find(binding.layout.weight);
    for (const auto* name : {&binding.layout.weight, &binding.layout.scale,
                             &binding.layout.global_scale, &binding.layout.input_scale}) {
      used_.insert(*name);
    }
    const bool shape_fits = check_shape(request, binding);
    const bool type_fits = check_type(request, binding);
    if (!shape_fits || !type_fits) return std::nullopt;
    binding.total_cols = binding.layout.cols;
    if (!resolve_ranges(request, binding)) return std::nullopt;
    binding.request = std::move(request);
    return binding;
  }

  bool check_shape(const TensorRequest& request, const Binding& binding) {
    TensorShape stored = binding.source->shape;
    if (!is_plain(binding.layout.format)) {
      if (binding.layout.weight.ends_with("_blocks")) stored.pop_back();
      stored.back() = binding.layout.cols;
    }
    if (stored == request.shape) return true;
    fault(*binding.source, request.name,
          fmt::format("has shape {}; expected {}", shape_text(stored), shape_text(request.shape)));
    return false;
  }

  bool check_type(const TensorRequest& request, const Binding& binding) {
    TANDEM_CHECK(request.as == DType::kBF16 || request.as == DType::kF32, "{} as {}", request.name,
                 dtype_name(request.as));
    const WeightFormat format = binding.layout.format;
    if (const auto& kept = request.quantized) {
      TANDEM_CHECK(kept->format == format && kept->scale_dtype == binding.layout.scale_dtype &&
                       kept->block_rows == binding.layout.block_rows &&
                       kept->block_cols == binding.layout.block_cols,
                   "{} is not bound as it is stored", request.name);
      return true;
    }
    if (!is_plain(format)) {
      if (options_.quantized == QuantizedWeights::kWiden) return true;
      fault(*binding.source, request.name,
            fmt::format(
                "is stored as {}, which this build cannot compute with; use a BF16 checkpoint",
                format_name(format)));
      return false;
    }
    if (format == WeightFormat::kF32 && request.as == DType::kBF16 &&
        request.narrowing == Narrowing::kRefuse) {
      fault(*binding.source, request.name, "is stored as F32; it is not rounded to BF16 unasked");
      return false;
    }
    return true;
  }

  bool resolve_ranges(TensorRequest& request, const Binding& binding) {
    const std::int64_t rows = request.shape.empty() ? 1 : request.shape.front();
    const std::int64_t cols = rows == 0 ? 0 : shape_numel(request.shape) / rows;
    if (cols != binding.layout.cols) {
      fault(*binding.source, request.name,
            "is a stack of quantized matrices, which this build "
            "cannot widen; use a BF16 checkpoint");
      return false;
    }
    if (request.rows.empty()) request.rows = {{0, rows}};
    if (!request.cols) request.cols = ColRange{0, cols};
    for (const auto& range : request.rows) {
      TANDEM_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= rows,
                   "{}: rows {} to {} of {}", request.name, range.begin, range.end, rows);
    }
    TANDEM_CHECK(0 <= request.cols->begin && request.cols->begin <= request.cols->end &&
                     request.cols->end <= cols,
                 "{}: columns {} to {} of {}", request.name, request.cols->begin, request.cols->end,
                 cols);
    if (request.dst_row_stride == 0) request.dst_row_stride = request.cols->count();
    TANDEM_CHECK(request.dst_row_stride >= request.cols->count(), "{}", request.name);
    TANDEM_CHECK(!request.quantized || request.dst_row_stride == request.cols->count(),
                 "{}: codes are packed", request.name);
    const bool four_bit = code_row_bytes(binding.layout.format, 2) == 1;
    TANDEM_CHECK(!four_bit || (request.cols->begin % 2 == 0 && request.cols->end % 2 == 0),
                 "{}: a column range that splits a byte", request.name);
    return true;
  }

  void check_leftovers() {
    // Of use with an FP8 cache only, and then read by whoever builds the cache (kv_scales.h).
    const std::set<std::string> kv_scales(formats_.kv_scales.begin(), formats_.kv_scales.end());
    std::vector<std::int64_t> num_ignored(options_.ignore.size(), 0);
    for (const auto& [name, entry] : checkpoint_.tensors()) {
      if (used_.contains(name) || kv_scales.contains(name)) continue;
      const auto pattern =
          std::find_if(options_.ignore.begin(), options_.ignore.end(),
                       [&name = name](const IgnorePattern& p) { return glob_match(p.glob, name); });
      if (pattern == options_.ignore.end()) {
        fault(entry, name,
              fmt::format("{} {} is not part of the model", dtype_name(entry.dtype),
                          shape_text(entry.shape)));
      } else {
        ++num_ignored[static_cast<std::size_t>(pattern - options_.ignore.begin())];
      }
    }
    for (std::size_t i = 0; i < num_ignored.size(); ++i) {
      if (num_ignored[i] == 0) continue;
      log_info("checkpoint: skipping {} ({} tensors)", options_.ignore[i].what, num_ignored[i]);
    }
  }

  const Checkpoint& checkpoint_;
  const BindOptions& options_;
  FaultList faults_;
  CheckpointFormats formats_;
  std::unordered_map<std::string, const WeightLayout*> layouts_;  // by the name requests use
  std::set<std::string> used_;
};

// One pass over the files: owns the open files, the staging buffer and the counters.
class Loader::Reader {
 public:
  Reader(const Loader& loader, const LoadOptions& options)
      : checkpoint_(loader.checkpoint_), options_(options) {
    progress_.bytes_total = loader.bytes_to_read_;
  }

  void read(const Binding& binding) {
    const TensorRequest& request = binding.request;
    TANDEM_CHECK(request.dst != nullptr || kept_rows(request) * request.cols->count() == 0, "{}",
                 request.name);
    weight_ = weight_without_data(binding.layout);
    weight_.cols = binding.total_cols;
    weight_.global_scale = read_global_scale(checkpoint_, binding.layout);
    const ColRange cols = *request.cols;
    // Whole rows while one fits into the staging buffer; a longer row goes in pieces.
    const std::int64_t row_bytes = code_row_bytes(weight_.format, cols.count());
    const std::int64_t rows_at_once =
        row_bytes == 0 ? 1 : std::max<std::int64_t>(1, options_.staging_bytes / row_bytes);
    const std::int64_t elements = options_.staging_bytes * 2 / code_row_bytes(weight_.format, 2);
    const std::int64_t cols_at_once = elements / 2 * 2;  // even: no piece splits a byte
    std::int64_t dst_row = 0;
    for (const auto& range : request.rows) {
      for (std::int64_t row = range.begin; row < range.end; row += rows_at_once) {
        const RowRange rows{row, std::min(range.end, row + rows_at_once)};
        for (std::int64_t col = cols.begin; col < cols.end; col += cols_at_once) {
          const ColRange piece{col, std::min(cols.end, col + cols_at_once)};
          read_chunk(binding, rows, rows.count() > 1 ? cols : piece, dst_row);
          if (rows.count() > 1) break;
        }
        dst_row += rows.count();
      }
    }
    if (request.quantized && request.quantized->has_scales()) read_scale_slice(binding);
  }

  LoadStats stats() const { return stats_; }

 private:
  const ReadOnlyFile& file(std::size_t index) {
    const auto it = files_.find(index);
    if (it != files_.end()) return it->second;
    const auto& opened =
        files_.emplace(index, ReadOnlyFile(checkpoint_.file_path(index))).first->second;
    if (opened.bytes() != checkpoint_.files()[index].bytes) {
      throw Error(ExitCode::kConfiguration,
                  {.what = fmt::format("changed from {} to {} bytes since it was checked",
                                       checkpoint_.files()[index].bytes, opened.bytes()),
                   .where = opened.path().string(),
                   .expected = {},
                   .remedy = "do not change a checkpoint while a job reads it"});
    }
    return opened;
  }

  void pread(const TensorEntry& entry, std::byte* dst, std::int64_t count, std::int64_t offset) {
    file(entry.file)
        .read_exact(dst, static_cast<std::size_t>(count),
                    entry.begin + static_cast<std::uint64_t>(offset));
    stats_.bytes_read += count;
    ++stats_.num_reads;
  }

  // rows x cols of the tensor into the destination rows from dst_row on.
  void read_chunk(const Binding& binding, RowRange rows, ColRange cols, std::int64_t dst_row) {
    const WeightFormat format = weight_.format;
    const std::int64_t row_bytes = code_row_bytes(format, weight_.cols);
    const std::int64_t kept_bytes = code_row_bytes(format, cols.count());
    const std::int64_t first = rows.begin * row_bytes + code_row_bytes(format, cols.begin);
    staging_.resize(static_cast<std::size_t>(kept_bytes * rows.count()));
    if (kept_bytes == row_bytes) {
      pread(*binding.source, staging_.data(), kept_bytes * rows.count(), first);
    } else {
      for (std::int64_t i = 0; i < rows.count(); ++i) {
        pread(*binding.source, staging_.data() + i * kept_bytes, kept_bytes, first + i * row_bytes);
      }
    }
    if (!is_plain(format) && !binding.request.quantized) read_scales(binding, rows);
    convert_chunk(binding, rows, cols, dst_row);
    if (options_.drop_page_cache) {
      const std::int64_t span = (rows.count() - 1) * row_bytes + kept_bytes;
      file(binding.source->file)
          .drop_page_cache(binding.source->begin + static_cast<std::uint64_t>(first),
                           static_cast<std::uint64_t>(span));
    }
    progress_.bytes_done += kept_bytes * rows.count();
    if (options_.progress) options_.progress(progress_);
  }

  void read_scales(const Binding& binding, RowRange rows) {
    const std::int64_t row_bytes =
        num_scale_cols(weight_) * static_cast<std::int64_t>(dtype_bytes(weight_.scale_dtype));
    first_scale_row_ = scale_row_of(weight_, rows.begin);
    const std::int64_t count = scale_row_of(weight_, rows.end - 1) + 1 - first_scale_row_;
    scales_.resize(static_cast<std::size_t>(count * row_bytes));
    pread(*checkpoint_.find(binding.layout.scale), scales_.data(), count * row_bytes,
          first_scale_row_ * row_bytes);
    require_sound_scales(binding, weight_, scales_.data(), {first_scale_row_, 0}, count);
  }

  void require_sound_scales(const Binding& binding, const QuantizedWeight& weight,
                            const std::byte* scales, ScalePlace first, std::int64_t num_rows) {
    FaultList faults;
    for (auto& fault : scan_scales(weight, scales, first, num_rows)) {
      faults.add_text(std::move(fault));
    }
    faults.throw_if_any(checkpoint_.file_path(binding.source->file).string());
  }

  // The scales that go with codes kept as they are stored, in runs of consecutive rows.
  void read_scale_slice(const Binding& binding) {
    const TensorRequest& request = binding.request;
    const ScaleSlice slice = slice_scales(weight_.block_rows, weight_.block_cols, weight_.cols,
                                          request.rows, *request.cols);
    if (slice.rows.empty() || slice.cols.empty()) return;
    const auto element = static_cast<std::int64_t>(dtype_bytes(weight_.scale_dtype));
    const auto num_cols = static_cast<std::int64_t>(slice.cols.size());
    const std::int64_t most_rows =
        std::max<std::int64_t>(1, options_.staging_bytes / (num_cols * element));
    auto* dst = static_cast<std::byte*>(request.quantized->scales);
    TANDEM_CHECK(dst != nullptr, "{}", request.name);
    for (std::size_t begin = 0; begin < slice.rows.size();) {
      std::size_t end = begin + 1;
      while (end < slice.rows.size() && static_cast<std::int64_t>(end - begin) < most_rows &&
             slice.rows[end] - slice.rows[end - 1] >= 0 &&
             slice.rows[end] - slice.rows[end - 1] <= 1) {
        ++end;
      }
      const std::int64_t width =
          read_scale_rows(binding, {slice.rows[begin], slice.rows[end - 1] + 1},
                          {slice.cols.front(), slice.cols.back() + 1});
      converted_.resize((end - begin) * slice.cols.size() * static_cast<std::size_t>(element));
      std::byte* out = converted_.data();
      for (std::size_t i = begin; i < end; ++i) {
        const std::byte* row =
            scales_.data() + (slice.rows[i] - slice.rows[begin]) * width * element;
        for (const std::int64_t col : slice.cols) {
          std::memcpy(out, row + (col - slice.cols.front()) * element,
                      static_cast<std::size_t>(element));
          out += element;
        }
      }
      store(dst + static_cast<std::int64_t>(begin) * num_cols * element, converted_.data(),
            converted_.size());
      begin = end;
    }
  }

  // rows x cols of the scales into scales_, checked; returns the number of columns.
  std::int64_t read_scale_rows(const Binding& binding, RowRange rows, ColRange cols) {
    const TensorEntry& entry = *checkpoint_.find(binding.layout.scale);
    const auto element = static_cast<std::int64_t>(dtype_bytes(weight_.scale_dtype));
    const std::int64_t row_bytes = num_scale_cols(weight_) * element;
    const std::int64_t kept_bytes = cols.count() * element;
    scales_.resize(static_cast<std::size_t>(rows.count() * kept_bytes));
    if (kept_bytes == row_bytes) {
      pread(entry, scales_.data(), rows.count() * row_bytes, rows.begin * row_bytes);
    } else {
      for (std::int64_t i = 0; i < rows.count(); ++i) {
        pread(entry, scales_.data() + i * kept_bytes, kept_bytes,
              (rows.begin + i) * row_bytes + cols.begin * element);
      }
    }
    QuantizedWeight slice = weight_;
    slice.cols =
        std::min(weight_.cols, cols.end * weight_.block_cols) - cols.begin * weight_.block_cols;
    require_sound_scales(binding, slice, scales_.data(), {rows.begin, cols.begin}, rows.count());
    return cols.count();
  }

  void convert_chunk(const Binding& binding, RowRange rows, ColRange cols, std::int64_t dst_row) {
    const TensorRequest& request = binding.request;
    if (request.quantized) {
      if (is_e4m3(weight_.format)) scan_codes(binding, rows, cols);
      store_chunk(request, staging_.data(), rows.count(), cols, dst_row);
      return;
    }
    const bool same_type = (weight_.format == WeightFormat::kBf16 && request.as == DType::kBF16) ||
                           (weight_.format == WeightFormat::kF32 && request.as == DType::kF32);
    if (same_type) {
      if (options_.scan_for_nan) scan_chunk(binding, rows, cols);
      store_chunk(request, staging_.data(), rows.count(), cols, dst_row);
      return;
    }
    const std::int64_t kept_bytes = code_row_bytes(weight_.format, cols.count());
    const auto row_bytes = static_cast<std::size_t>(cols.count()) * dtype_bytes(request.as);
    const bool scan = options_.scan_for_nan || !is_plain(weight_.format);
    values_.resize(static_cast<std::size_t>(cols.count()));
    converted_.resize(row_bytes * static_cast<std::size_t>(rows.count()));
    for (std::int64_t i = 0; i < rows.count(); ++i) {
      CodeRow row{.codes = staging_.data() + i * kept_bytes, .first_col = cols.begin};
      if (!is_plain(weight_.format)) {
        row.scales =
            scales_.data() + (scale_row_of(weight_, rows.begin + i) - first_scale_row_) *
                                 num_scale_cols(weight_) *
                                 static_cast<std::int64_t>(dtype_bytes(weight_.scale_dtype));
      }
      dequantize_row(weight_, row, cols.begin, cols.end, values_.data());
      if (scan) check_finite(binding, rows.begin + i, cols);
      narrow_row(request.as, converted_.data() + static_cast<std::size_t>(i) * row_bytes);
    }
    store_chunk(request, converted_.data(), rows.count(), cols, dst_row);
  }

  // E4M3 codes as they lie in the file; the other quantized formats have no code that is NaN.
  void scan_codes(const Binding& binding, RowRange rows, ColRange cols) const {
    unsigned found = 0;
    for (const std::byte code : staging_) {
      found |= static_cast<unsigned>((std::to_integer<unsigned>(code) & 0x7fu) == 0x7fu);
    }
    if (found == 0) return;
    for (std::size_t i = 0; i < staging_.size(); ++i) {
      if ((std::to_integer<unsigned>(staging_[i]) & 0x7fu) != 0x7fu) continue;
      const auto at = static_cast<std::int64_t>(i);
      not_finite(binding, rows.begin + at / cols.count(), cols.begin + at % cols.count(),
                 std::numeric_limits<float>::quiet_NaN());
    }
  }

  // Plain values as they lie in the file: a look at the exponents is enough, and keeps loading at
  // the speed of the disk.
  void scan_chunk(const Binding& binding, RowRange rows, ColRange cols) {
    const auto count = static_cast<std::size_t>(rows.count() * cols.count());
    if (!has_non_finite(staging_.data(), count, binding.request.as)) return;
    values_.resize(static_cast<std::size_t>(cols.count()));
    for (std::int64_t i = 0; i < rows.count(); ++i) {
      const CodeRow row{.codes = staging_.data() + i * code_row_bytes(weight_.format, cols.count()),
                        .first_col = cols.begin};
      dequantize_row(weight_, row, cols.begin, cols.end, values_.data());
      check_finite(binding, rows.begin + i, cols);
    }
  }

  static bool has_non_finite(const std::byte* data, std::size_t count, DType type) {
    std::uint32_t found = 0;
    if (type == DType::kBF16) {
      for (std::size_t k = 0; k < count; ++k) {
        std::uint16_t bits;
        std::memcpy(&bits, data + k * sizeof bits, sizeof bits);
        found |= (bits & 0x7f80u) == 0x7f80u;
      }
    } else {
      for (std::size_t k = 0; k < count; ++k) {
        std::uint32_t bits;
        std::memcpy(&bits, data + k * sizeof bits, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
      }
    }
    return found != 0;
  }

  // Packed values [rows, cols] to their place; rows that follow each other there go in one piece.
  void store_chunk(const TensorRequest& request, const std::byte* values, std::int64_t num_rows,
                   ColRange cols, std::int64_t dst_row) const {
    const std::int64_t row_bytes = memory_bytes(request, cols.count());
    const std::int64_t stride_bytes = memory_bytes(request, request.dst_row_stride);
    auto* dst = static_cast<std::byte*>(request.dst) + dst_row * stride_bytes +
                memory_bytes(request, cols.begin - request.cols->begin);
    const bool packed = stride_bytes == row_bytes;
    const std::int64_t pieces = packed ? 1 : num_rows;
    const auto bytes = static_cast<std::size_t>(packed ? num_rows * row_bytes : row_bytes);
    for (std::int64_t i = 0; i < pieces; ++i) {
      store(dst + i * stride_bytes, values + i * row_bytes, bytes);
    }
  }

  void store(std::byte* dst, const std::byte* src, std::size_t bytes) const {
    if (options_.store) {
      options_.store(dst, src, bytes);
    } else {
      std::memcpy(dst, src, bytes);
    }
  }

  // values_ in the destination's type.
  void narrow_row(DType as, std::byte* out) const {
    if (as == DType::kF32) {
      std::memcpy(out, values_.data(), values_.size() * sizeof(float));
      return;
    }
    for (std::size_t k = 0; k < values_.size(); ++k) {
      const bf16 value = to_bf16(values_[k]);
      std::memcpy(out + k * sizeof value, &value, sizeof value);
    }
  }

  void check_finite(const Binding& binding, std::int64_t row, ColRange cols) const {
    for (std::size_t k = 0; k < values_.size(); ++k) {
      if (std::isfinite(values_[k])) continue;
      not_finite(binding, row, cols.begin + static_cast<std::int64_t>(k), values_[k]);
    }
  }

  [[noreturn]] void not_finite(const Binding& binding, std::int64_t row, std::int64_t col,
                               float value) const {
    throw Error(ExitCode::kConfiguration,
                {.what = fmt::format("tensor \"{}\": element [{}, {}] is {}", binding.layout.weight,
                                     row, col, value),
                 .where = checkpoint_.file_path(binding.source->file).string(),
                 .expected = "finite weights",
                 .remedy = "download the checkpoint again or use another one"});
  }

  const Checkpoint& checkpoint_;
  const LoadOptions& options_;
  std::map<std::size_t, ReadOnlyFile> files_;
  QuantizedWeight weight_;            // of the current binding
  std::vector<std::byte> staging_;    // codes of the current chunk, [rows, kept columns]
  std::vector<std::byte> scales_;     // scale rows of the current chunk
  std::int64_t first_scale_row_ = 0;  // in scales_
  std::vector<float> values_;
  std::vector<std::byte> converted_;  // a chunk in the destination's type
  LoadProgress progress_;
  LoadStats stats_;
};

Loader::Loader(const Checkpoint& checkpoint, std::vector<TensorRequest> requests,
               BindOptions options)
    : checkpoint_(checkpoint) {
  bindings_ = Binder(checkpoint, options).bind(std::move(requests));
  for (const auto& b : bindings_) {
    bytes_to_read_ +=
        kept_rows(b.request) * code_row_bytes(b.layout.format, b.request.cols->count());
  }
}

LoadStats Loader::load(const LoadOptions& options) const {
  TANDEM_CHECK(options.staging_bytes >= 4096, "{}", options.staging_bytes);
  const double start = monotonic_s();
  Reader reader(*this, options);
  for (const auto& binding : bindings_) reader.read(binding);
  LoadStats stats = reader.stats();
  stats.seconds = monotonic_s() - start;
  return stats;
}

}  // namespace tandem
