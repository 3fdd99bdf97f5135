//! Leaves out tags that would make a tree deep or slow.

use std::cell::RefCell;
use std::collections::HashMap;

use html5ever::tokenizer::{Tag, TagKind, Token, TokenSink, TokenSinkResult};
use html5ever::tree_builder::TreeBuilder;
use html5ever::{LocalName, local_name};

use crate::html::tree::{Dialect, NodeId, Sink};

/// Deepest nesting of elements; deeper tags are dropped, their text is kept.
const DEPTH: usize = 256;

/// Attributes that are read.
const ATTRIBUTES: [&str; 10] = [
    "alt",
    "encoding",
    "id",
    "name",
    "reversed",
    "shadowrootmode",
    "srcdoc",
    "start",
    "type",
    "value",
];

/// Elements that only change the appearance. The tree is built without them, so that none must be reopened.
const LOOKS: [&str; 14] = [
    "a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u",
];

/// Elements without an end.
const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
];

/// Elements whose content is not markup.
const RAW: [&str; 9] = [
    "iframe",
    "noembed",
    "noframes",
    "plaintext",
    "script",
    "style",
    "textarea",
    "title",
    "xmp",
];

/// Passes tags to the tree builder, except tags that would make it deep or slow.
pub(super) struct Filter {
    pub(super) tree: TreeBuilder<NodeId, Sink>,
    dialect: Dialect,
    /// Start tags dropped for their depth, by name.
    dropped: RefCell<HashMap<LocalName, usize>>,
}

impl TokenSink for Filter {
    type Handle = NodeId;

    fn process_token(&self, token: Token, line: u64) -> TokenSinkResult<NodeId> {
        if self.tree.sink.tree.borrow().is_full {
            return TokenSinkResult::Continue;
        }
        match token {
            Token::TagToken(tag) => self.tag(tag, line),
            Token::CommentToken(_) | Token::ParseError(_) => TokenSinkResult::Continue,
            token => self.tree.process_token(token, line),
        }
    }

    fn end(&self) {
        self.tree.end();
    }

    fn adjusted_current_node_present_but_not_in_html_namespace(&self) -> bool {
        // Sections of character data are text in XHTML.
        self.dialect == Dialect::Xhtml || self.is_foreign()
    }
}

impl Filter {
    pub(super) fn new(tree: TreeBuilder<NodeId, Sink>, dialect: Dialect) -> Self {
        Self {
            tree,
            dialect,
            dropped: RefCell::default(),
        }
    }

    fn is_foreign(&self) -> bool {
        self.tree.adjusted_current_node_present_but_not_in_html_namespace()
    }

    fn tag(&self, mut tag: Tag, line: u64) -> TokenSinkResult<NodeId> {
        let is_xhtml = self.dialect == Dialect::Xhtml;
        if is_xhtml && let Some((_, local)) = tag.name.rsplit_once(':') {
            tag.name = LocalName::from(local);
        }
        tag.attrs.retain(|attribute| {
            let name = &*attribute.name.local;
            // Only chapters of books begin at anchors.
            ATTRIBUTES.contains(&name) && (is_xhtml || !["id", "name"].contains(&name))
        });
        if LOOKS.contains(&&*tag.name) {
            return self.plain(tag, line);
        }
        if tag.kind == TagKind::EndTag {
            if let Some(count) = self.dropped.borrow_mut().get_mut(&tag.name).filter(|count| **count > 0) {
                *count -= 1;
                return TokenSinkResult::Continue;
            }
            return self.tree.process_token(Token::TagToken(tag), line);
        }
        let is_void = VOID.contains(&&*tag.name);
        let is_raw = RAW.contains(&&*tag.name);
        if is_xhtml && tag.self_closing && is_raw {
            return TokenSinkResult::Continue;
        }
        if self.tree.sink.depth.get() >= DEPTH && !is_void && !is_raw {
            if !tag.self_closing {
                *self.dropped.borrow_mut().entry(tag.name).or_default() += 1;
            }
            // Keep the words on both sides separate.
            return self.tree.process_token(Token::TagToken(start("br")), line);
        }
        let closes = is_xhtml && tag.self_closing && !is_void && !self.is_foreign();
        let end = Tag {
            kind: TagKind::EndTag,
            name: tag.name.clone(),
            self_closing: false,
            attrs: Vec::new(),
            had_duplicate_attributes: false,
        };
        // Elements of SVG and MathML close themselves.
        let closes = closes && !["svg", "math"].contains(&&*tag.name);
        let result = self.tree.process_token(Token::TagToken(tag), line);
        if closes {
            return self.tree.process_token(Token::TagToken(end), line);
        }
        result
    }

    /// Drops a tag that only changes the appearance. It may have an anchor, and it ends an open picture or formula.
    fn plain(&self, mut tag: Tag, line: u64) -> TokenSinkResult<NodeId> {
        let ends_picture = self.dialect == Dialect::Html && self.is_foreign();
        let is_place = !tag.attrs.is_empty();
        if tag.kind == TagKind::EndTag || !(ends_picture || is_place) {
            return TokenSinkResult::Continue;
        }
        if self.is_foreign() && !ends_picture {
            return TokenSinkResult::Continue;
        }
        tag.name = local_name!("span");
        tag.self_closing = false;
        let _ = self.tree.process_token(Token::TagToken(tag), line);
        let mut end = start("span");
        end.kind = TagKind::EndTag;
        self.tree.process_token(Token::TagToken(end), line)
    }
}

fn start(name: &str) -> Tag {
    Tag {
        kind: TagKind::StartTag,
        name: LocalName::from(name),
        self_closing: false,
        attrs: Vec::new(),
        had_duplicate_attributes: false,
    }
}
