// Chat messages to prompt text, for the families Tandem runs. There is no Jinja interpreter: the
// family is recognised by the structure of the checkpoint's template and rendered by hand-written
// code, and every fixed English text is taken out of the checkpoint, never retyped.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "prompts/chat_message.h"

namespace tandem {

struct RenderedPrompt {
  std::string text;       // with its BOS, if the family has one: add no other
  bool thinking = false;  // ends inside a thinking block
};

// One family's renderer. render() throws Error{kPrompts} for what the template refuses.
class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;
  virtual RenderedPrompt render(const Conversation& conversation) const = 0;
  virtual std::string family() const = 0;
  // Whether ChatOptions::thinking changes anything.
  virtual bool has_thinking_switch() const = 0;
};

class ChatTemplate {
 public:
  // Looks at chat_template.jinja, then chat_template of tokenizer_config.json, then
  // encoding/encoding_dsv4.py (DeepSeek-V4 ships a Python encoder instead of a template).
  //   "chatml"       every turn is <|im_start|>role newline content <|im_end|> newline. It has no
  //                  thinking switch: ChatOptions::thinking changes nothing there, the prompt batch
  //                  warns, and the model decides by itself whether to open a <think> block.
  //   "qwen3.8"      thinking switch, reasoning effort, tools.
  //   "deepseek-v4"  likewise, in its own markup; the only one that writes a BOS.
  // A checkpoint with no template or an unknown one is not an error yet, since a batch of plain
  // prompts needs none: usable() is false and reason() says why and what to do.
  static ChatTemplate detect(const std::filesystem::path& checkpoint_dir);
  // For prompts.chat_template: none.
  static ChatTemplate none();

  bool usable() const { return renderer_ != nullptr; }
  const std::string& reason() const { return reason_; }
  std::string family() const { return renderer_ ? renderer_->family() : "none"; }
  bool has_thinking_switch() const { return renderer_ && renderer_->has_thinking_switch(); }

  // Throws Error{kPrompts} for conversations the template refuses, and for every conversation when
  // not usable().
  RenderedPrompt render(const Conversation& conversation) const;

 private:
  std::shared_ptr<const ChatRenderer> renderer_;
  std::string reason_;
};

}  // namespace tandem
