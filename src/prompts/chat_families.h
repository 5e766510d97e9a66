// The families' recognisers: each looks at a checkpoint's template and returns a renderer if it is
// its own. They must not claim what they cannot render exactly.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "prompts/chat_template.h"

namespace tandem {

// nullptr if the Jinja template is another family's.
std::shared_ptr<const ChatRenderer> make_chatml(std::string_view jinja);
std::shared_ptr<const ChatRenderer> make_qwen38(std::string_view jinja);
// From the text of encoding/encoding_dsv4.py. With an empty text (quantised copies often lack the
// file) conversations without tools and without a reasoning effort can still be rendered.
std::shared_ptr<const ChatRenderer> make_deepseek_v4(std::string_view encoder);

[[noreturn]] inline void refuse_conversation(std::string what, std::string expected = {}) {
  throw Error(
      ExitCode::kPrompts,
      {.what = std::move(what), .where = {}, .expected = std::move(expected), .remedy = {}});
}

// Python's str.strip(), which is what "|trim" does in a template.
std::string_view python_strip(std::string_view text);

}  // namespace tandem
